"""Forms: how values stand in JSON, each read strictly from a node, written, and described by a JSON Schema.

Leaves out dataclasses, whose forms `costmodel.codec` derives from their fields.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from costmodel.files import LARGEST_INTEGER, Node

T = TypeVar("T")
Schema = dict[str, Any]
Definitions = dict[str, Schema]
"""Schemas of objects by the names of their types."""
Read = Callable[[Node], T]


def _same(value: Any) -> Any:
    return value


def _never(_: object) -> bool:
    return False


@dataclass(frozen=True)
class JsonForm(Generic[T]):
    """How a value stands in JSON: read from a node, written, and what the schema says; `plain` ones are read as is."""

    read: Read[T]
    write: Callable[[T], Any] = _same
    schema: Callable[[Definitions], Schema] = lambda _: {}
    plain: Callable[[object], bool] = _never


FLAG = JsonForm(Node.flag, schema=lambda _: {"type": "boolean"}, plain=lambda value: isinstance(value, bool))
ANYTHING = JsonForm[Any](lambda node: node.value)
FREE = JsonForm[Mapping[str, object]](
    lambda node: {key: member.value for key, member in node.entries().items()},
    dict,
    lambda _: {"type": "object", "description": "Free: whatever the writer wants to keep."},
)


def whole(least: int = 0, most: int = LARGEST_INTEGER) -> JsonForm[int]:
    """Return the form of whole numbers between two, both included."""
    return JsonForm(
        lambda node: node.integer(least, most),
        schema=lambda _: {"type": "integer", "minimum": least, "maximum": most},
        plain=lambda value: type(value) is int and least <= value <= most,
    )


def number(least: float = 0, most: float = LARGEST_INTEGER) -> JsonForm[float]:
    """Return the form of numbers between two, both included."""
    return JsonForm(
        lambda node: node.number(least, most),
        schema=lambda _: {"type": "number", "minimum": least, "maximum": most},
        plain=lambda value: type(value) is float and least <= value <= most,
    )


def scaled(factor: int) -> JsonForm[int]:
    """Return the form of whole numbers that a file counts in units of `factor`, as bytes in GiB."""
    counted = number(0, LARGEST_INTEGER / factor)
    return JsonForm(lambda node: round(counted.read(node) * factor), lambda value: value / factor, counted.schema)


def text(allowed: Sequence[str] = (), **rules: str) -> JsonForm[str]:
    """Return the form of texts, of all or of those that are allowed; `rules` are the schema's."""
    schema: Schema = {"enum": list(allowed)} if allowed else {"type": "string", **rules}
    known = tuple(allowed) or None
    return JsonForm(
        lambda node: node.text(known), schema=lambda _: schema, plain=lambda v: not known and type(v) is str
    )


def nullable(inner: JsonForm[T]) -> JsonForm[T | None]:
    """Return the form of what may be null."""
    return JsonForm(
        lambda node: None if node.value is None else inner.read(node),
        lambda value: None if value is None else inner.write(value),
        lambda known: {"anyOf": [inner.schema(known), {"type": "null"}]},
    )


def listed(inner: JsonForm[T]) -> JsonForm[tuple[T, ...]]:
    """Return the form of a list."""

    def read(node: Node) -> tuple[T, ...]:
        if isinstance(node.value, list) and all(map(inner.plain, node.value)):  # most of a profile: no node for each
            return tuple(node.value)
        return tuple(map(inner.read, node.items()))

    return JsonForm(
        read,
        list if inner.write is _same else lambda values: list(map(inner.write, values)),
        lambda known: {"type": "array", "items": inner.schema(known)},
    )


def numbered(inner: JsonForm[T]) -> JsonForm[tuple[T, ...]]:
    """Return the form of a list of objects, each of which says its `INDEX`."""

    def read(index: int, node: Node) -> T:
        found, place = inner.read(node), node.entries()["index"]
        if place.value != index:
            place.fail(f"the entries are listed in order of their index, {index} is next")
        return found

    return JsonForm(
        lambda node: tuple(read(index, each) for index, each in enumerate(node.items())),
        lambda values: [{**inner.write(value), "index": index} for index, value in enumerate(values)],
        listed(inner).schema,
    )


def row(*forms: JsonForm[Any], says: str) -> JsonForm[tuple[Any, ...]]:
    """Return the form of a list of as many values, each with a form of its own; `says` names them."""

    def read(node: Node) -> tuple[Any, ...]:
        value = node.value if isinstance(node.value, list) else []
        if len(value) == len(forms) and all(form.plain(each) for form, each in zip(forms, value, strict=True)):
            return tuple(value)
        items = node.items()
        if len(items) != len(forms):
            node.fail(f"a list of {len(forms)} is needed here: {says}")
        return tuple(form.read(item) for form, item in zip(forms, items, strict=True))

    return JsonForm(
        read,
        lambda values: [form.write(value) for form, value in zip(forms, values, strict=True)],
        lambda known: {
            "type": "array",
            "prefixItems": [form.schema(known) for form in forms],
            "items": False,
            "minItems": len(forms),
            "description": says,
        },
    )


def mapped(inner: JsonForm[T], keys: Sequence[str] = ()) -> JsonForm[dict[str, T]]:
    """Return the form of an object whose keys are names, any or those that are allowed."""

    def read(node: Node) -> dict[str, T]:
        for name, member in node.entries().items():
            if keys and name not in keys:
                member.fail(f"the names are {', '.join(keys)}")
        return {name: inner.read(member) for name, member in node.entries().items()}

    def schema(known: Definitions) -> Schema:
        body = {"properties": dict.fromkeys(keys, inner.schema(known)), "additionalProperties": False}
        return {"type": "object", **(body if keys else {"additionalProperties": inner.schema(known)})}

    return JsonForm(read, lambda values: {name: inner.write(value) for name, value in values.items()}, schema)
