"""Reading a Hugging Face config.json: strictly, by a checked list of model types, class defaults named when used.

Leaves out keys that the list does not hold: they change neither shapes nor work.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

from costmodel.architectures.whitelist import DEFAULTS, HEADS, PARTS, Default
from costmodel.errors import InvalidInput
from costmodel.files import Node, read_json

T = TypeVar("T")

LAYER_TYPES = ("sliding_attention", "full_attention")

FIXED = {"moe_layer_freq": 1, "add_cross_attention": False}
"""Keys that would change shapes, with the only value that is described."""

QUANTIZED = (
    "the weights of this checkpoint are quantized, and are trained in another precision than they are stored in: take "
    "quantization_config out, and say by --precision what is trained in"
)
"""What to do about a checkpoint's `quantization_config`."""

_CAPTURED = "with torch and transformers installed, penstock model captures any class that transformers builds"

_MAY_BE_ZERO = (
    "first_k_dense_replace",
    "num_nextn_predict_layers",
    "n_shared_experts",
    "max_window_layers",
    "sliding_window",
)


class NotDescribed(InvalidInput):
    """A configuration of a model that is not described from its shape, and may be captured."""


@dataclass(frozen=True, slots=True)
class Config:
    """A model's shape as its configuration names it.

    Attributes
    ----------
    model_type : str
    values : mapping of str to Default
        Every key of the model type, defaults filled in.
    parts : mapping of str to Config
        ``text_config`` and ``vision_config`` where there are several towers.
    defaults : tuple of str
        Keys that the class filled, parts' keys with their part in front.
    """

    model_type: str
    values: Mapping[str, Default]
    parts: Mapping[str, "Config"] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()

    def integer(self, key: str) -> int:
        """Return a whole number; null is refused."""
        return self._of(key, int)

    def optional(self, key: str) -> int:
        """Return a whole number; 0 where it is null."""
        return self.integer(key) if self.values.get(key) is not None else 0

    def flag(self, key: str) -> bool:
        """Return true or false."""
        return self._of(key, bool)

    def number(self, key: str) -> float:
        """Return a number."""
        return float(self._of(key, (int, float)))  # type: ignore[arg-type]

    def text(self, key: str) -> str:
        """Return a string."""
        return self._of(key, str)

    def listed(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers; empty where it is null."""
        return self._of(key, tuple) if self.values.get(key) is not None else ()

    def _of(self, key: str, kind: type[T]) -> T:
        value = self.values[key]
        if not isinstance(value, kind):
            raise InvalidInput(f"{self.model_type}: {key} is {value!r}; give it a value in config.json")
        return value


def make_config(model_type: str, values: Mapping[str, Default], **parts: Mapping[str, Default]) -> Config:
    """Return a configuration from shapes that are known by other means; what is not given is the class's."""
    inner = {
        name: Config(f"{model_type}.{name}", {**defaults, **parts.get(name, {})})
        for name, defaults in PARTS.get(model_type, {}).items()
    }
    return Config(model_type, {**DEFAULTS[model_type], **values}, inner)


def read_config(path: str | Path) -> Config:
    """Read a config.json.

    Raises
    ------
    NotDescribed
        When its model type, its class or a value that changes shapes is not on the list.
    InvalidInput
        When the file cannot be read, or a value cannot be meant.
    """
    root = read_json(path)
    members = root.entries()
    if "model_type" not in members:
        root.fail("a Hugging Face config.json names its model_type")
    model_type = members["model_type"].text()
    if _given(members, "quantization_config"):
        members["quantization_config"].fail(QUANTIZED)
    _check_described(model_type, members)
    parts = {
        name: _level(f"{model_type}.{name}", members[name].entries() if name in members else members, keys, name)
        for name, keys in PARTS.get(model_type, {}).items()
    }
    own = _level(model_type, members, DEFAULTS[model_type])
    filled = (*own.defaults, *(key for part in parts.values() for key in part.defaults))
    return Config(model_type, own.values, parts, filled)


def _level(model_type: str, members: Mapping[str, Node], keys: Mapping[str, Default], part: str = "") -> Config:
    values: dict[str, Default] = dict(keys)
    filled = []
    for key, default in keys.items():
        if key in members:
            values[key] = _value(members[key], key, default)
        elif key == "num_labels" and _given(members, "id2label"):
            values[key] = len(members["id2label"].entries())
        else:
            filled.append(f"{part}.{key}" if part else key)
    return Config(model_type, values, {}, tuple(filled))


def _value(node: Node, key: str, default: Default) -> Default:
    if node.value is None and (default is None or key in ("sliding_window", "q_lora_rank", "num_key_value_heads")):
        return None
    if key == "layer_types":
        return tuple(int(item.text(LAYER_TYPES) == LAYER_TYPES[0]) for item in node.items())
    if key == "supported_aspect_ratios":
        return (len(node.items()),)
    if isinstance(default, tuple) or key == "mlp_only_layers":
        return node.integers()
    if isinstance(default, bool):
        return node.flag()
    if isinstance(default, float):
        return node.number(0.0, 1.0)
    return node.text() if isinstance(default, str) else node.integer(0 if key in _MAY_BE_ZERO else 1)


def _given(members: Mapping[str, Node], key: str) -> bool:
    """Whether a key is there and is not null, as transformers writes what a configuration does not have."""
    return key in members and members[key].value is not None


def _check_described(model_type: str, members: Mapping[str, Node]) -> None:
    """Refuse what is not described: other model types, classes with other heads, values that change shapes."""
    if model_type not in DEFAULTS:
        _not_described(members["model_type"], f"described from shapes are {', '.join(DEFAULTS)}")
    for node in members["architectures"].items() if _given(members, "architectures") else ():
        if node.text() not in HEADS[model_type]:
            heads = " or ".join(HEADS[model_type])
            _not_described(node, f"described from its shape is {heads} alone, and other classes hold more or less")
    for key, value in FIXED.items():
        if key in members and members[key].value != value:
            _not_described(members[key], f"only {value!r} is described from its shape")


def _not_described(node: Node, allowed: str) -> NoReturn:
    try:
        node.fail(f"{allowed}; {_CAPTURED}")
    except InvalidInput as error:
        raise NotDescribed(str(error)) from None
