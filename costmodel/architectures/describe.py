"""From a configuration to an operator graph with its facts: parameters, active ones, floating-point operations.

Leaves out times (`estimate`) and where configurations come from (`configs`, `table`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from costmodel import limits
from costmodel.architectures.adapters import AdaptedLayers
from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.configs import Config
from costmodel.architectures.layer_operators import LayerOperators
from costmodel.architectures.registry import BUILDERS
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.graph import OperatorGraph, Parameter

FEWEST_OF_A_LAYER = 10
"""Operators that any of these models' layers has at least (GPT-NeoX's have 11): too many layers are refused unbuilt."""
LONGEST_DEFAULT = 4096
"""Tokens of a sample when none are asked for, or what the model takes at most where that is less."""

_LEARNED = ("gpt2", "clip")
"""Model types whose texts are no longer than the positions they learn."""


@dataclass(frozen=True, slots=True)
class Description:
    """A described model.

    Attributes
    ----------
    graph : OperatorGraph
    model_type : str
    tokens : int
        Of one sample's text; 0 for a model of images alone.
    parameters, active_parameters : int
        Of the main model as publications count it: without layers of multi-token prediction; active ones leave out
        the experts that do not take a token.
    all_parameters : int
        Every parameter of the graph.
    flop : int
        Of one sample's forward, prediction layers included.
    defaults : tuple of str
        Keys that the model type's class filled.
    source, note : str
        Where the shape is from, and what its count leaves out.
    """

    graph: OperatorGraph
    model_type: str
    tokens: int
    parameters: int
    active_parameters: int
    all_parameters: int
    flop: int
    defaults: tuple[str, ...] = ()
    source: str = ""
    note: str = ""


def describe_config(
    name: str,
    config: Config,
    *,
    tokens: int = 0,
    precision: str = "bf16",
    microbatch_sizes: Sequence[int] = (1,),
    not_counted: Sequence[str] = (),
    source: str = "",
    note: str = "",
    lora_rank: int = 0,
) -> Description:
    """Return the model that a configuration describes.

    Parameters
    ----------
    name, source, note : str
        Kept in the description.
    config : Config
    tokens : int
        Of one sample's text; 0 for the default.
    precision : str
        One of `PRECISIONS`.
    microbatch_sizes : sequence of int
    not_counted : sequence of str
        Beginnings of names of parameters, or rows of one (``name[start:]``), that the published count leaves out.
    lora_rank : int
        Of the adapters that train alone; 0 for a model that trains whole.

    Raises
    ------
    UsageError, InvalidInput
        When a flag's value cannot be meant; when shapes contradict each other.
    """
    tokens = tokens_of(config, tokens)
    graph = _graph(name, config, tokens, precision, tuple(microbatch_sizes), lora_rank)
    outside = (*not_counted, *_prediction_layers(config))
    numbers = {p.name: count(p) - _left_out(p, outside) for p in graph.parameters}
    total = sum(numbers.values())
    return Description(
        graph, config.model_type, tokens, total, total - _idle(graph, numbers), sum(map(count, graph.parameters)),
        sum(operator.flop for operator in graph.operators), config.defaults, source, note,
    )  # fmt: skip


def _graph(
    name: str, config: Config, tokens: int, precision: str, microbatch_sizes: tuple[int, ...], lora_rank: int
) -> OperatorGraph:
    if precision not in PRECISIONS:
        raise UsageError(f"--precision {precision!r}; allowed are {', '.join(PRECISIONS)}")
    _check_shapes(config)
    made = name, PRECISIONS[precision], microbatch_sizes
    builder = AdaptedLayers(*made, lora_rank=lora_rank) if lora_rank else LayerOperators(*made)
    BUILDERS[config.model_type](builder, config, tokens)
    return builder.graph()


def count(parameter: Parameter) -> int:
    """Return how many numbers a parameter holds."""
    return prod(parameter.shape)


def _left_out(parameter: Parameter, outside: Sequence[str]) -> int:
    """Return how many of a parameter's numbers are not counted."""
    for item in outside:
        name, _, start = item.partition("[")
        if start and parameter.name == name:
            rows = parameter.shape[0]
            return count(parameter) // rows * (rows - int(start.removesuffix(":]")))
        if not start and parameter.name.startswith(name):
            return count(parameter)
    return 0


def tokens_of(config: Config, asked: int) -> int:
    """Return the tokens of one sample: those asked for, else as many as the model takes, `LONGEST_DEFAULT` at most."""
    kind = config.model_type
    if kind == "vit":  # its rows follow from the image
        return 0
    longest = _longest(config)
    if asked and kind in _LEARNED and asked > longest:
        raise UsageError(f"--sequence {asked}: {kind} has {longest} learned positions; give at most {longest}")
    return asked or min(longest, LONGEST_DEFAULT)


def _longest(config: Config) -> int:
    if config.model_type == "t5":
        return 512  # relative positions: the length of its pre-training
    owner = config.parts.get("text_config", config)
    return owner.integer("n_positions" if config.model_type == "gpt2" else "max_position_embeddings")


def _prediction_layers(config: Config) -> tuple[str, ...]:
    first, num = config.values.get("num_hidden_layers"), config.optional("num_nextn_predict_layers")
    return tuple(f"model.layers.{int(first) + i}." for i in range(num)) if isinstance(first, int) else ()


def _idle(graph: OperatorGraph, numbers: Mapping[str, int]) -> int:
    """Return the parameters of experts that do not take a given token."""
    idle = 0
    for operator in graph.operators:
        work = operator.work
        if work and work.kind == "matmul" and work.experts:
            held = sum(numbers[name] for name in operator.parameters)
            idle += held // work.experts * (work.experts - work.active)
    return idle


def _check_shapes(config: Config) -> None:
    """Refuse heads that do not divide the width, or each other, images smaller than a patch, and too many layers."""
    for level in (config, *config.parts.values()):
        for key, value in level.values.items():
            if "layer" in key and not key.startswith("max_") and isinstance(value, int):
                place, fewest = f"{level.model_type}: {key} {value}", value * FEWEST_OF_A_LAYER
                limits.check("operators", fewest, place, at_least=True)
        pairs = (
            ("hidden_size", "num_attention_heads"), ("n_embd", "n_head"), ("hidden_size", "attention_heads"),
            ("num_attention_heads", "num_key_value_heads"),
            ("embed_dim" if "embed_dim" in level.values else "hidden_size", "num_heads"),
        )  # fmt: skip
        for whole, part in pairs:
            a, b = level.values.get(whole), level.values.get(part)
            if whole == "hidden_size" and (level.values.get("head_dim") or "kv_lora_rank" in level.values):
                continue
            if isinstance(a, int) and isinstance(b, int) and a % b:
                raise InvalidInput(f"{level.model_type}: {whole} {a} is no multiple of {part} {b}; correct config.json")
        size, side = level.values.get("image_size"), level.values.get("patch_size")
        if isinstance(size, int) and isinstance(side, int) and size < side:
            raise InvalidInput(
                f"{level.model_type}: an image_size of {size} has no patch of patch_size {side}; correct config.json"
            )
