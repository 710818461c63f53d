"""JSON from dataclasses: one declaration of a type reads it strictly, writes it, and prints its JSON Schema.

A field's annotation says how it stands in a file: ``int`` is a whole number from 0, ``tuple[str, ...]`` a list of
texts, ``tuple[tuple[str, int], ...]`` and a mapping are objects, another dataclass is an object of its own,
``X | None`` may be null. A `Json` in ``Annotated`` says what the type does not: another key, bounds, or when the key is
left out. Leaves out whole files (`costmodel.documents`).
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cached_property
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any

from costmodel.files import LARGEST_INTEGER, Node
from costmodel.forms import (
    ANYTHING,
    FLAG,
    FREE,
    Definitions,
    JsonForm,
    Schema,
    T,
    listed,
    mapped,
    nullable,
    number,
    row,
    text,
    whole,
)


@dataclass(frozen=True, slots=True)
class Json:
    """What a field's type does not say of its place in a file.

    Attributes
    ----------
    key : str
        Its key, where that is not the field's name.
    least, most : float
        Bounds of a number, both inclusive.
    allowed : tuple of str
        The texts that are allowed; empty for any.
    needed : bool, optional
        Whether a file must have it; None: where the field has no default.
    unsaid : bool or callable
        Whether it is left out where it is the default, or what tells that from the whole object.
    says : str
        Its description in the schema.
    rules : mapping
        What the type itself refuses, in the schema's words.
    form : JsonForm, optional
        A form of its own.
    """

    key: str = ""
    least: float = 0
    most: float = LARGEST_INTEGER
    allowed: tuple[str, ...] = ()
    needed: bool | None = None
    unsaid: bool | Callable[[Any], bool] = False
    says: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict)
    form: JsonForm[Any] | None = None


UNSAID = Json(unsaid=True)
"""Left out where it is the default."""
NEEDED = Json(needed=True)
"""In every file, though the field has a default."""
Positive = Annotated[int, Json(least=1)]
Extras = Mapping[str, tuple[Json, Callable[[Any], Any], str]]
"""Keys of an object that follow from the others: how they stand in a file, their value, the key before ("": none)."""

INDEX = (Json(form=whole()), lambda _: 0, "")
"""The extra key ``index`` of what is `numbered`."""


def form_of(annotation: Any, json: Json = Json()) -> JsonForm[Any]:
    """Return the form that a type asks for.

    Raises
    ------
    TypeError
        Where JSON has none for it.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return form_of(arguments[0], _merged([json, *arguments[1:]]))
    if json.form is not None:
        return json.form
    if annotation in (int, float):
        return whole(int(json.least), int(json.most)) if annotation is int else number(json.least, json.most)
    if annotation in (str, bool):
        return FLAG if annotation is bool else text(json.allowed)
    if (origin is tuple and arguments[-1] is Ellipsis) or origin is Sequence:
        return _list_form(arguments[0], json)
    if origin is tuple:
        return row(*(form_of(each, json) for each in arguments), says=json.says)
    if origin is Mapping:
        return FREE if arguments[1] is object else mapped(form_of(arguments[1]), json.allowed)
    if origin is UnionType and arguments[1] is NoneType:
        return nullable(form_of(arguments[0], json))
    if is_dataclass(annotation) and isinstance(annotation, type):
        return record(annotation)
    if annotation in (object, Any):
        return ANYTHING
    raise TypeError(f"{annotation} has no form in JSON")


def _list_form(inner: Any, json: Json) -> JsonForm[Any]:
    pair = typing.get_args(inner)
    if typing.get_origin(inner) is tuple and pair[0] is str:
        named = mapped(form_of(pair[1], json))
        return JsonForm(
            lambda node: tuple(named.read(node).items()), lambda rows: named.write(dict(rows)), named.schema
        )
    return listed(form_of(inner, json))


def _merged(given: Sequence[Json]) -> Json:
    """Return one of several; the last that says something else than usual counts."""
    usual, names = Json(), [each.name for each in fields(Json)]
    found = {name: value for each in given for name in names if (value := getattr(each, name)) != getattr(usual, name)}
    return Json(**found)


@dataclass(frozen=True)
class _Member:
    """A key of an object: of a field, or an extra one."""

    key: str
    name: str
    form: JsonForm[Any]
    json: Json
    needed: bool
    value: Callable[[Any], Any]
    default: Any

    def left_out(self, whole: Any) -> bool:
        unsaid = self.json.unsaid
        return self.value(whole) == self.default if unsaid is True else bool(unsaid and unsaid(whole))

    def schema(self, known: Definitions) -> Schema:
        says = {"description": self.json.says} if self.json.says else {}
        return {**self.form.schema(known), **self.json.rules, **says}


Settle = Callable[[dict[str, Any], Node], None]


class Record(JsonForm[T]):
    """The form of a dataclass: an object with a key a field; several dataclasses share one object."""

    def __init__(
        self,
        kinds: Sequence[type],
        *,
        late: Sequence[str] = (),
        absent: Sequence[str] = (),
        extras: Extras | None = None,
        settle: Settle | None = None,
        rules: Schema | None = None,
    ) -> None:
        """Say what annotations leave open.

        Parameters
        ----------
        kinds : sequence of type
            A dataclass, or several that stand in one object and are read as a tuple.
        late : sequence of str
            Keys that come last in a file.
        absent : sequence of str
            Fields that no file has.
        extras : Extras, optional
        settle : callable, optional
            Looks at what was read, extra keys included, and sets what one value says of another.
        rules : dict, optional
            What the schema says besides.
        """
        super().__init__(self._read, self._write, self._schema)
        vars(self).update(
            _kinds=kinds, _late=late, _absent=absent, _extras=extras or {}, _settle=settle, _rules=rules or {}
        )

    _kinds: Sequence[type]
    _late: Sequence[str]
    _absent: Sequence[str]
    _extras: Extras
    _settle: Settle | None
    _rules: Schema

    @cached_property
    def members(self) -> tuple[_Member, ...]:
        """Its keys, in the order of a file."""
        found = []
        for part, kind in enumerate(self._kinds):
            hints = typing.get_type_hints(kind, include_extras=True)
            for each in fields(kind):
                json = _merged(getattr(hints[each.name], "__metadata__", ()))
                if each.name not in self._absent:
                    found.append(_field_member(each, hints[each.name], json, part if len(self._kinds) > 1 else None))
        found.sort(key=lambda member: self._late.index(member.key) if member.key in self._late else -1)
        for key, (json, value, before) in self._extras.items():
            place = [member.key for member in found].index(before) + 1 if before else 0
            found.insert(
                place, _Member(key, key, json.form or ANYTHING, json, json.needed is not False, value, MISSING)
            )
        return tuple(found)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Keys that a file must have."""
        return tuple(member.key for member in self.members if member.needed)

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """Keys that it may have besides."""
        return tuple(member.key for member in self.members if not member.needed)

    @cached_property
    def _known(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(self.required), frozenset((*self.required, *self.optional))

    @cached_property
    def _names(self) -> tuple[frozenset[str], ...]:
        return tuple(frozenset(each.name for each in fields(kind)) for kind in self._kinds)

    def values(self, node: Node) -> dict[str, Any]:
        """Return what a file gives of the fields and the extra keys, by name."""
        found, (required, known) = node.value, self._known
        if not isinstance(found, dict) or not required <= found.keys() <= known:
            node.members(self.required, self.optional)  # says what is wrong
            raise AssertionError
        values = {}
        for member in self.members:
            if member.key in found:
                value = found[member.key]
                values[member.name] = value if member.form.plain(value) else member.form.read(node.child(member.key))
        if self._settle is not None:
            self._settle(values, node)
        return values

    def _read(self, node: Node) -> Any:
        values = self.values(node)
        rows = ({name: value for name, value in values.items() if name in names} for names in self._names)
        made = node.build(lambda: [kind(**row) for kind, row in zip(self._kinds, rows, strict=True)])
        return made[0] if len(made) == 1 else tuple(made)

    def _write(self, value: Any) -> dict[str, Any]:
        return {m.key: m.form.write(m.value(value)) for m in self.members if not m.left_out(value)}

    def body(self, known: Definitions) -> Schema:
        """Return the schema of the object itself, whatever it is called."""
        return {
            "type": "object",
            "description": " ".join((inspect.getdoc(self._kinds[0]) or "").split("\n\n")[0].split()),
            "required": list(self.required),
            "properties": {member.key: member.schema(known) for member in self.members},
            "additionalProperties": False,
            **self._rules,
        }

    def _schema(self, known: Definitions) -> Schema:
        name = self._kinds[0].__name__.strip("_")
        if name not in known:
            known[name] = {}  # in its place, before those that it refers to
            known[name] = self.body(known)
        return {"$ref": f"#/$defs/{name}"}


def _field_member(each: Field[Any], hint: Any, json: Json, part: int | None) -> _Member:
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    needed = default is MISSING if json.needed is None else json.needed
    own = attrgetter(each.name)
    value = own if part is None else lambda parts: own(parts[part])
    return _Member(json.key or each.name, each.name, form_of(hint), json, needed, value, default)


_RECORDS: dict[tuple[type, ...], Record[Any]] = {}


def record(*kinds: type, **said: Any) -> Record[Any]:
    """Return the form of a dataclass, or of several; where one is defined it is said what annotations leave open."""
    if kinds in _RECORDS and said:
        raise TypeError(f"the form of {kinds} was asked for before it was said what it is")
    if kinds not in _RECORDS:
        _RECORDS[kinds] = Record(kinds, **said)
    return _RECORDS[kinds]


def to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as files have it."""
    return record(type(value)).write(value)  # type: ignore[no-any-return]
