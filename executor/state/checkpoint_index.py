"""A checkpoint's folder: `index.json`, which says what is in it, and a safetensors file of each rank.

The index is put in its place as a whole, and every file says in its header which checkpoint it is of; so a folder is
one checkpoint or refused, never a mixture of two. Reading runs no code. Leaves out ranks: `checkpoint` has them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch

from costmodel.errors import DoesNotMatch, InvalidInput
from costmodel.files import Node, document, read_json, write_json
from executor.model.tensor_file import TYPES, TensorFile
from executor.stages.user_parallelize import own_part, own_place
from executor.state.plain_values import decode

FORMAT, VERSION, INDEX = "penstock-checkpoint", 1, "index.json"
_OURS = re.compile(r"step-\d+\.[0-9a-f]+\.rank-\d+\.safetensors")

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a part of a tensor begins in the whole one, and its shape."""


@dataclass(frozen=True, slots=True)
class SavedPart:
    """A part of a tensor in the file of one rank."""

    file: int
    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A whole tensor: its type's name, its shape, the parts that make it up."""

    type: str
    shape: tuple[int, ...]
    parts: tuple[SavedPart, ...]


@dataclass(frozen=True, slots=True)
class SavedGroup:
    """A group of an optimizer's parameters: whose and which it was, its parameters' names, its options as JSON."""

    rank: int
    index: int
    parameters: tuple[str, ...]
    options: Any


@dataclass(frozen=True, slots=True)
class Index:
    """What a checkpoint holds.

    Attributes
    ----------
    id : str
        Drawn for each checkpoint.
    steps : int
        That were done.
    files : sequence of (name, bytes)
        One a rank.
    tensors : mapping of str to Stored
    optimizer : str
        Name of the optimizer's class; empty where none was saved.
    states : mapping
        Parameter -> key -> what the optimizer keeps, as JSON.
    groups : sequence of SavedGroup
    modules : mapping
        Path of a module -> its extra state, as JSON.
    given : sequence
        What each rank was given to keep, as JSON.
    """

    id: str
    steps: int
    files: Sequence[tuple[str, int]]
    tensors: Mapping[str, Stored]
    optimizer: str = ""
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    groups: Sequence[SavedGroup] = ()
    modules: Mapping[str, Any] = field(default_factory=dict)
    given: Sequence[Any] = ()

    def write(self, folder: Path) -> None:
        """Put the index into its folder, then remove the files of checkpoints that were there before."""
        body = {
            "id": self.id,
            "steps": self.steps,
            "files": [{"name": name, "bytes": size} for name, size in self.files],
            "tensors": {
                name: {"type": one.type, "shape": list(one.shape),
                       "parts": [{"file": p.file, "start": list(p.start), "shape": list(p.shape)} for p in one.parts]}
                for name, one in self.tensors.items()
            },
            "optimizer": self.optimizer,
            "states": self.states,
            "groups": [{"rank": g.rank, "index": g.index, "parameters": list(g.parameters), "options": g.options}
                       for g in self.groups],
            "modules": self.modules,
            "given": list(self.given),
        }  # fmt: skip
        write_json(folder / INDEX, FORMAT, VERSION, body)
        named = {name for name, _ in self.files}
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in named:
                path.unlink(missing_ok=True)


def file_name(steps: int, identity: str, rank: int) -> str:
    """Return the name of a rank's file, which no other checkpoint's has."""
    return f"step-{steps:08}.{identity}.rank-{rank}.safetensors"


def identity_of(identity: str, steps: int, rank: int) -> dict[str, str]:
    """Return what a rank's file says of itself."""
    return {"format": FORMAT, "id": identity, "steps": str(steps), "rank": str(rank)}


def read_index(folder: Path) -> Index:
    """Read the index of a folder.

    Raises
    ------
    DoesNotMatch
        When the folder holds no checkpoint of ours.
    InvalidInput
        When the index is broken.
    """
    if not (folder / INDEX).exists():
        if (folder / ".metadata").exists():
            raise DoesNotMatch(
                f"{folder} is a checkpoint of torch.distributed.checkpoint, as release 0.2 wrote: reading its pickled "
                "index can run code, so it is not read; load it with the release that wrote it, take "
                "pipe.state_dict() and pipe.optimizer_state_dict(), and give them to load_state_dict here"
            )
        raise DoesNotMatch(f"{folder} holds no checkpoint (there is no {INDEX} in it): name the folder of pipe.save")
    return read_index_file(folder / INDEX)


def read_index_file(path: Path) -> Index:
    """Read an index.

    Raises
    ------
    InvalidInput
        When it is broken.
    """
    keys = ("id", "steps", "files", "tensors", "optimizer", "states", "groups", "modules", "given")
    root = document(read_json(path), FORMAT, VERSION, keys)
    files = [node.members(("name", "bytes")) for node in root["files"].items()]
    for node in files:
        if not _OURS.fullmatch(node["name"].text()):
            node["name"].fail("the name of a rank's file is needed here, step-N.ID.rank-R.safetensors")
    groups = [node.members(("rank", "index", "parameters", "options")) for node in root["groups"].items()]
    return Index(
        root["id"].text(),
        root["steps"].integer(),
        [(node["name"].text(), node["bytes"].integer()) for node in files],
        {name: _stored(node, len(files)) for name, node in root["tensors"].entries().items()},
        root["optimizer"].text(),
        {name: {k: v.value for k, v in node.entries().items()} for name, node in root["states"].entries().items()},
        [
            SavedGroup(g["rank"].integer(), g["index"].integer(), g["parameters"].texts(), g["options"].value)
            for g in groups
        ],
        {path: node.value for path, node in root["modules"].entries().items()},
        [node.value for node in root["given"].items()],
    )


def _stored(node: Node, num_files: int) -> Stored:
    members = node.members(("type", "shape", "parts"))
    shape = members["shape"].integers()
    parts = []
    for part in members["parts"].items():
        found = part.members(("file", "start", "shape"))
        start, own = found["start"].integers(), found["shape"].integers()
        inside = len(start) == len(own) == len(shape)
        if not inside or any(a + n > length for a, n, length in zip(start, own, shape, strict=True)):
            part.fail(f"a part of a tensor of the shape {list(shape)} is needed here")
        parts.append(SavedPart(found["file"].integer(0, num_files - 1), start, own))
    return Stored(members["type"].text(TYPES), shape, tuple(parts))


class Checkpoint:
    """A checkpoint that is there: its index, and its tensors by name.

    Parameters
    ----------
    folder : path

    Raises
    ------
    DoesNotMatch
        When it holds none, or files of another one.
    InvalidInput
        When it is broken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, read_index(folder)
        self._files = [self._opened(rank, *row) for rank, row in enumerate(self.index.files)]

    def _opened(self, rank: int, name: str, size: int) -> TensorFile:
        path = self.folder / name
        if not path.exists():
            raise DoesNotMatch(f"{path} is not there; copy a checkpoint with all its files")
        file = TensorFile(path)
        if file.metadata != identity_of(self.index.id, self.index.steps, rank):
            raise DoesNotMatch(
                f"{path} is not rank {rank}'s file of the checkpoint of step {self.index.steps} that {INDEX} names (it "
                f"says step {file.metadata.get('steps')}, rank {file.metadata.get('rank')}): files of two checkpoints "
                "stand in one folder; copy one of them whole"
            )
        if path.stat().st_size != size:
            raise DoesNotMatch(f"{path} holds {path.stat().st_size} bytes of {size}: it was cut off; copy it again")
        return file

    def read(self, name: str, box: Box | None = None) -> torch.Tensor:
        """Return a tensor, or the part of it in a box (start, shape), put together from what the ranks wrote.

        Raises
        ------
        InvalidInput
            When parts are missing.
        """
        stored = self.index.tensors.get(name)
        if stored is None:
            raise InvalidInput(f"{self.folder / INDEX} names no tensor {name!r}")
        start, shape = box if box is not None else ((0,) * len(stored.shape), stored.shape)
        whole: torch.Tensor | None = None
        filled = 0
        for part in stored.parts:
            first = [max(a, b) for a, b in zip(start, part.start, strict=True)]
            ends = zip(start, shape, part.start, part.shape, strict=True)
            size = [min(a + n, b + k) - low for (a, n, b, k), low in zip(ends, first, strict=True)]
            if any(length <= 0 for length in size):
                continue
            rows = (first[0] - part.start[0], size[0]) if size else (0, None)
            piece = self._files[part.file].rows(name, *rows)
            for dimension in range(1, len(size)):
                piece = piece.narrow(dimension, first[dimension] - part.start[dimension], size[dimension])
            filled += prod(size)
            if size == list(shape):
                whole = piece
                continue
            whole = piece.new_empty(shape) if whole is None else whole
            target = whole
            for dimension, length in enumerate(size):
                target = target.narrow(dimension, first[dimension] - start[dimension], length)
            target.copy_(piece)
        if not prod(shape):
            return torch.empty(shape, dtype=TYPES[stored.type])
        if whole is None or filled != prod(shape):
            raise InvalidInput(f"{self.folder / INDEX}: the parts of {name!r} do not make it up")
        return whole

    def fill(self, name: str, tensor: torch.Tensor) -> None:
        """Fill a tensor, of which this rank may hold a part."""
        own_part(tensor.detach()).copy_(self.read(name, own_place(tensor)))

    def value(self, encoded: Any) -> Any:
        """Return a value that was encoded."""
        return decode(encoded, self.read)
