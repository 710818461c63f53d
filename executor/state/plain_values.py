"""Python values as JSON with their tensors apart: what optimizers, schedules and loops keep beside parameters.

Numbers, texts, bytes, lists, tuples, dicts, counters, arrays of numpy and tensors, as deep as a file may be; everything
else is refused by its place, for nothing that is read may run code. Leaves out where the tensors go.
"""

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from costmodel.errors import DoesNotMatch

_KIND = "$"
"""The key of an object that stands for what JSON has no word for."""

_DEEPEST = 24

Keep = Callable[[str, torch.Tensor], str]
"""(Place, tensor) -> the name under which it is kept."""


def encode(value: Any, place: str, keep: Keep, depth: int = 0) -> Any:
    """Return a value as JSON; `keep` is given each tensor in it.

    Raises
    ------
    DoesNotMatch
        Names the place of what cannot be written.
    """
    if depth > _DEEPEST:
        raise DoesNotMatch(f"{place} is nested deeper than {_DEEPEST} levels: keep less, or flatter values")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_KIND: "float", "text": repr(value)}
    if isinstance(value, torch.Tensor):
        return {_KIND: "tensor", "name": keep(place, value)}
    if type(value) is bytes:
        return {_KIND: "bytes", "text": base64.b64encode(value).decode()}

    def inside(item: Any, key: Any) -> Any:
        return encode(item, f"{place}[{key!r}]", keep, depth + 1)

    if type(value) is list:
        return [inside(item, i) for i, item in enumerate(value)]
    if type(value) in (tuple, torch.Size):
        return {_KIND: "tuple", "items": [inside(item, i) for i, item in enumerate(value)]}
    if type(value) in (dict, OrderedDict, Counter):
        if type(value) is not Counter and all(type(key) is str for key in value) and _KIND not in value:
            return {key: inside(item, key) for key, item in value.items()}
        items = [[inside(key, key), inside(item, key)] for key, item in value.items()]
        return {_KIND: "counter" if type(value) is Counter else "dict", "items": items}
    if type(value).__module__ == "numpy":
        if not hasattr(value, "__len__"):
            return encode(value.item(), place, keep, depth + 1)
        return {_KIND: "array", "name": keep(place, torch.from_numpy(value))}
    raise DoesNotMatch(
        f"{place} is a {type(value).__qualname__}, which a checkpoint does not take (numbers, texts, lists, tuples, "
        "dicts, tensors and arrays alone, for reading them runs no code): keep what it is made of"
    )


def decode(value: Any, fetch: Callable[[str], torch.Tensor]) -> Any:
    """Return the value that was encoded; `fetch` returns a tensor by the name under which it is kept."""
    if isinstance(value, list):
        return [decode(item, fetch) for item in value]
    if not isinstance(value, Mapping):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: decode(item, fetch) for key, item in value.items()}
    if kind in ("tensor", "array"):
        tensor = fetch(value["name"])
        return tensor.numpy() if kind == "array" else tensor
    if kind == "float":
        return float(value["text"])
    if kind == "bytes":
        return base64.b64decode(value["text"])
    items = [decode(item, fetch) for item in value["items"]]
    return tuple(items) if kind == "tuple" else Counter(dict(items)) if kind == "counter" else dict(items)


def names_of_tensors(value: Any) -> list[str]:
    """Return the names of all tensors of an encoded value."""
    if isinstance(value, Mapping):
        if value.get(_KIND) in ("tensor", "array"):
            return [str(value["name"])]
        return [name for item in value.values() for name in names_of_tensors(item)]
    return [name for item in value for name in names_of_tensors(item)] if isinstance(value, list) else []
