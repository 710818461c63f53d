"""Kinds of files: each has its format, its version, and the form of what it holds.

Leaves out how that stands in JSON (`costmodel.codec`) and how files are read and written (`costmodel.files`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from costmodel.codec import Record
from costmodel.errors import InvalidInput
from costmodel.files import Node, brief, read_json, write_json
from costmodel.forms import FREE, Definitions, JsonForm, Schema, T


def document(
    root: Node, kind: str, version: int, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, Node]:
    """Check the ``format`` and ``version`` of a file and return its members.

    Readers know version N and N-1; version 1 is the first one.
    """
    if not isinstance(root.value, dict):
        root.fail("an object is needed here")
    found = root.value.get("format")
    if found != kind:
        raise InvalidInput(
            f"{root.file}: {root.pointer}/format: found {brief(found)}; a file of format {kind!r} is needed here"
        )
    number = root.value.get("version")
    known = [v for v in (version - 1, version) if v >= 1]
    if isinstance(number, bool) or number not in known:
        raise InvalidInput(
            f"{root.file}: {root.pointer}/version: found {brief(number)}; this release reads version "
            f"{' and '.join(map(str, known))} of {kind}: write the file again with a matching release"
        )
    members = root.members(("format", "version", *required), optional)
    for key in ("provenance", "extra"):
        if key in members:
            members[key].entries()
    return members


@dataclass(frozen=True)
class Document(Generic[T]):
    """A kind of file: its format, its version, the form of its body, and keys that are its writer's own."""

    format: str
    version: int
    form: Record[T]
    free: tuple[str, ...] = ()

    def read(self, path: str | Path) -> T:
        """Read a file; see `costmodel.files` for what is refused."""
        return self.read_node(read_json(path))

    def read_node(self, root: Node) -> T:
        """Read a whole file's content, of a file of its own or within another."""
        top = document(root, self.format, self.version, self.form.required, (*self.form.optional, *self.free))
        own = {key: node.value for key, node in top.items() if key not in ("format", "version", *self.free)}
        return self.form.read(Node(own, root.pointer, root.file))

    def write(self, path: str | Path, value: T, **free: Mapping[str, object]) -> None:
        """Write a file atomically; the same value gives the same bytes."""
        body = {**self.form.write(value), **{key: dict(each) for key, each in free.items()}}
        write_json(path, self.format, self.version, body)

    @property
    def whole(self) -> JsonForm[T]:
        """The form of the whole file within another, whose schema is its own file's."""
        name = f"{self.format.removeprefix('penstock-')}.schema.json"
        return JsonForm(self.read_node, self._whole, lambda _: {"$ref": name})

    def _whole(self, value: T) -> dict[str, Any]:
        return {"format": self.format, "version": self.version, **self.form.write(value)}

    def schema(self) -> Schema:
        """Return the JSON Schema of a file."""
        kind, known = self.format.removeprefix("penstock-"), Definitions()
        body = self.form.body(known)
        versions = [version for version in (self.version - 1, self.version) if version]
        head = {"format": {"const": self.format}, "version": {"enum": versions}}
        own = {key: FREE.schema(known) for key in self.free}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"{kind}.schema.json",
            "title": f"Penstock {kind}, version {self.version}",
            **body,
            "required": [*head, *body["required"]],
            "properties": {**head, **body["properties"], **own},
            "$defs": known,
        }
