"""A Hugging Face config.json as a training model: the class that it names, with inputs and a loss of its kind.

Every class is taken that the installed transformers builds; nothing is downloaded and no code of a repository runs.
Texts have as many tokens as asked for, images and sounds the size that the configuration gives. The loss is the cross
entropy of the class's logits (of pixels where they are maps), and where a class returns none the mean square of what it
returns, which stands in place of a loss of the user's own. Leaves out where the weights are, and losses that match
boxes, align sounds or compare samples: their time is small compared with the model's.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from costmodel.architectures.configs import QUANTIZED
from costmodel.capture.kernel_attention import use_kernels
from costmodel.capture.kernel_scans import use_scan_kernels
from costmodel.errors import InvalidInput, UsageError
from costmodel.files import Node, read_json

LONGEST_DEFAULT = 4096
"""Tokens of a sample when none are asked for, or what the model takes at most where that is less."""
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "max_target_positions")
"""Keys under which configurations say how many tokens they take."""
SECONDS, RATE = 10, 16_000
"""Of a sound where it enters as a wave."""
BINS = ("num_mel_bins", "feature_projection_input_dim", "input_dim", "input_feat_per_channel")
FRAMES = ("frames_per_clip", "num_frames")
"""Keys under which configurations say how many frequencies a sound has, and how many pictures a video."""
CLASSES = (
    "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM", "MASKED_LM", "SPEECH_SEQ_2_SEQ", "CTC",
    "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION", "DEPTH_ESTIMATION",
    "AUDIO_CLASSIFICATION", "PRETRAINING",
)  # fmt: skip
"""transformers' tables of classes by model type, as they are looked through where a configuration names no class."""

Inputs = dict[str, torch.Tensor]


def build(path: str, batch: int = 2, sequence: int = 0) -> dict[str, Any]:
    """Return model, inputs, targets and loss of a config.json.

    Parameters
    ----------
    path : str
    batch : int
        Samples.
    sequence : int
        Tokens of a text; 0 for as many as the model takes, `LONGEST_DEFAULT` at most.

    Raises
    ------
    InvalidInput
        When transformers has no such model type or class, or the class refuses the configuration.
    UsageError
        When transformers is not installed.
    """
    root = read_json(path)
    config = _config(root)
    kind = _class(root, config)
    try:
        model = kind(config)
    except Exception as error:  # whatever the class raises on a configuration that it does not take
        raise InvalidInput(
            f"{path}: {kind.__name__} of transformers {_version()} refuses this configuration: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}; correct config.json"
        ) from None
    if all(parameter.is_meta for parameter in model.parameters()):
        use_kernels(model)
        use_scan_kernels(model)
    inputs = _inputs(model, config, batch, sequence)
    return {"model": model, "inputs": inputs, "targets": _targets(model, inputs), "loss": standing_loss}


def standing_loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of an output's logits against targets that repeat; else its mean square.

    Logits of four dimensions are maps of classes, those of three rows of a text, of two one row a sample.
    """
    found = _values(output)
    logits = found.get("logits")
    if logits is None:
        first = next(value for value in found.values() if value.is_floating_point())
        return first.float().square().mean()
    rows = logits.movedim(1, -1) if logits.dim() == 4 else logits
    rows = rows.flatten(0, -2).float()
    wanted = targets.flatten()
    if wanted.numel() != rows.shape[0]:
        wanted = wanted[:1].expand(rows.shape[0])
    return F.cross_entropy(rows, wanted)


def _values(output: Any) -> Mapping[str, torch.Tensor]:
    """Return an output's tensors by name, those of a plain one by number."""
    if isinstance(output, torch.Tensor):
        return {"0": output}
    named = output.items() if isinstance(output, Mapping) else enumerate(output)
    return {str(name): value for name, value in named if isinstance(value, torch.Tensor)}


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def _config(root: Node) -> Any:
    """Read the configuration by transformers' own class of its model type."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        raise UsageError(
            f"{root.file}: building the class that it names needs torch and transformers: install transformers, "
            "or take a model type that is described from its shape (docs/models.md lists them)"
        ) from None
    members = root.entries()
    if "model_type" not in members:
        root.fail("a Hugging Face config.json names its model_type")
    kind = members["model_type"].text()
    quantized = members.get("quantization_config")
    if quantized is not None and quantized.value is not None:
        quantized.fail(QUANTIZED)
    if kind not in CONFIG_MAPPING:
        members["model_type"].fail(
            f"transformers {_version()} has no such model type: install a release that has it, or write the model as "
            "module:function"
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(dict(root.value))  # type: ignore[call-overload]
    except Exception as error:  # whatever transformers raises on values of a wrong kind
        raise InvalidInput(
            f"{root.file}: transformers {_version()} refuses this configuration: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}; correct it"
        ) from None


def _class(root: Node, config: Any) -> Any:
    """Return the class that the configuration names, else the one that its model type is trained as."""
    import transformers
    from transformers.models.auto import modeling_auto

    named = root.entries().get("architectures")
    names = [node.text() for node in named.items()] if named is not None and named.value else []
    for name in names:
        if not hasattr(transformers, name):
            assert named is not None  # noqa: S101 - names are read from it
            named.fail(
                f"transformers {_version()} has no class {name}: take it out for the class that the model type is "
                "trained as, or write the model as module:function"
            )
    tables = (getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES", {}) for table in CLASSES)
    names += [table[config.model_type] for table in tables if config.model_type in table]
    base = modeling_auto.MODEL_MAPPING_NAMES.get(config.model_type, ())
    names += [base] if isinstance(base, str) else base
    if not names:
        raise InvalidInput(
            f"{root.file}: transformers {_version()} lists no class for the model type {config.model_type!r}; name one "
            'under "architectures"'
        )
    return getattr(transformers, names[0])


def _inputs(model: nn.Module, config: Any, batch: int, sequence: int) -> Inputs:
    """Return one batch by keyword: what the class's forward takes of texts, images and sounds."""
    taken = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    vision, text = _part(config, "vision_config"), config.get_text_config()
    makers: Mapping[str, Callable[[], torch.Tensor]] = {
        "pixel_values": lambda: (_video if vision is None and _frames(config) else _images)(vision or config, batch),
        "pixel_values_videos": lambda: _video(vision or config, batch),
        "input_features": lambda: _spectra(model, _part(config, "audio_config") or config, batch),
        "input_values": lambda: (
            torch.zeros(batch, SECONDS * RATE) if _reads_waves(model) else _spectra(model, config, batch)
        ),
        "input_ids": lambda: _tokens(config, text, batch, sequence),
        "decoder_input_ids": lambda: _tokens(config, text, batch, sequence),
    }
    wanted = {main}
    wanted |= {"pixel_values", "input_ids"} & set(taken) if vision is not None else set()
    wanted |= {"decoder_input_ids"} & set(taken) if getattr(config, "is_encoder_decoder", False) else set()
    unknown = sorted(wanted - set(makers))
    if unknown:
        raise InvalidInput(
            f"{type(model).__name__} takes {', '.join(unknown)}, of which a configuration does not say how much; "
            f"known are {', '.join(makers)}: write the model as module:function, with inputs of your own"
        )
    return {name: makers[name]() for name in taken if name in wanted}


def _part(config: Any, name: str) -> Any:
    return getattr(config, name, None)


def _tokens(config: Any, text: Any, batch: int, sequence: int) -> torch.Tensor:
    """Return tokens; the first of them stand for an image where the model puts one into its text."""
    longest = next((n for n in (getattr(text, key, None) for key in LENGTHS) if isinstance(n, int) and n > 0), 0)
    length = sequence or min(longest or LONGEST_DEFAULT, LONGEST_DEFAULT)
    found = torch.ones(batch, length, dtype=torch.long)
    places = _image_tokens(config)
    if places:
        found[:, 1 : places + 1] = getattr(config, "image_token_id", getattr(config, "image_token_index", 0))
    return found


def _image_tokens(config: Any) -> int:
    """Return how many tokens of a text an image takes, where the configuration says so."""
    for key in ("image_seq_length", "mm_tokens_per_image", "image_seq_len"):
        number = getattr(config, key, None)
        if isinstance(number, int):
            return number
    return 0


def _images(vision: Any, batch: int) -> torch.Tensor:
    size = getattr(vision, "image_size", None) or getattr(vision, "crop_size", None) or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.zeros(batch, getattr(vision, "num_channels", 3) or 3, height, width)


def _video(vision: Any, batch: int) -> torch.Tensor:
    return _images(vision, batch).unsqueeze(1).expand(-1, _frames(vision) or 16, -1, -1, -1)


def _frames(vision: Any) -> int:
    """Return how many pictures a video has, 0 where the configuration does not say."""
    return next((n for key in FRAMES if isinstance(n := getattr(vision, key, None), int)), 0)


def _reads_waves(model: nn.Module) -> bool:
    """Whether a convolution over one channel reads a sound, as none reads frequencies."""
    return any(isinstance(each, nn.Conv1d) and each.in_channels == 1 for each in model.modules())


def _spectra(model: nn.Module, audio: Any, batch: int) -> torch.Tensor:
    """Return frequencies by time where a convolution along the time is what reads them first, else time by those."""
    frames = getattr(audio, "max_length", 0) or 2 * getattr(audio, "max_source_positions", 1500)
    bins = next((n for key in BINS if isinstance(n := getattr(audio, key, None), int)), 80)
    along_time = any(isinstance(each, nn.Conv1d) and each.in_channels == bins for each in model.modules())
    return torch.zeros(batch, bins, frames) if along_time else torch.zeros(batch, frames, bins)


def _targets(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    """Return the class of each row of the text that is read last, or one a sample."""
    tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    batch = next(iter(inputs.values())).shape[0]
    return torch.zeros(batch if tokens is None else tokens.shape, dtype=torch.long)
