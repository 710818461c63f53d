"""A checkpoint's folder: `index.json`, which says what is in it, and a safetensors file of each rank.

The index is put in its place as a whole, and every file says in its header which checkpoint it is of; so a folder is
one checkpoint or refused, never a mixture of two. Reading runs no code. Leaves out ranks: `checkpoint` has them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch

from costmodel.codec import NEEDED, Json, record
from costmodel.documents import Document
from costmodel.errors import DoesNotMatch, InvalidInput
from costmodel.files import Node
from costmodel.forms import JsonForm, listed, text
from executor.model.tensor_file import TYPES, TensorFile
from executor.stages.user_parallelize import own_part, own_place
from executor.state.plain_values import decode

FORMAT, INDEX = "penstock-checkpoint", "index.json"
_OURS = re.compile(r"step-[0-9]+\.[0-9a-f]+\.rank-[0-9]+\.safetensors")


def _file_name(node: Node) -> str:
    name = node.text()
    if not _OURS.fullmatch(name):
        node.fail("the name of a rank's file is needed here, step-N.ID.rank-R.safetensors")
    return name


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a part of a tensor begins in the whole one, and its shape."""


@dataclass(frozen=True, slots=True)
class SavedPart:
    """A part of a tensor in the file of one rank."""

    file: int
    start: tuple[int, ...]
    shape: tuple[int, ...]

    def lies_in(self, shape: tuple[int, ...]) -> bool:
        """Return whether it is a part of a tensor of this shape."""
        if not len(self.start) == len(self.shape) == len(shape):
            return False
        return all(a + n <= length for a, n, length in zip(self.start, self.shape, shape, strict=True))


@dataclass(frozen=True, slots=True)
class Stored:
    """A whole tensor: its type's name, its shape, the parts that make it up."""

    type: Annotated[str, Json(allowed=tuple(TYPES))]
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
class _SavedFile:
    """The file of a rank."""

    name: Annotated[str, Json(form=JsonForm(_file_name, schema=text(pattern=f"^{_OURS.pattern}$").schema))]
    size_bytes: Annotated[int, Json("bytes")]


_FILES: JsonForm[tuple[_SavedFile, ...]] = listed(record(_SavedFile))


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

    id: Annotated[str, Json(says="Drawn for each checkpoint; every file of it names it.")]
    steps: Annotated[int, Json(says="That were done.")]
    files: Annotated[
        Sequence[tuple[str, int]],
        Json(
            form=JsonForm(
                lambda node: tuple((each.name, each.size_bytes) for each in _FILES.read(node)),
                lambda files: [{"name": name, "bytes": size} for name, size in files],
                _FILES.schema,
            ),
            says="One a rank.",
        ),
    ]
    tensors: Annotated[
        Mapping[str, Stored], Json(says="model.NAME, optimizer.NAME.KEY, and tensors of what ranks gave along.")
    ]
    optimizer: Annotated[str, NEEDED, Json(says="Name of the optimizer's class; empty where none was saved.")] = ""
    states: Annotated[
        Mapping[str, Mapping[str, Any]], NEEDED, Json(says="Parameter -> key -> what the optimizer keeps.")
    ] = field(default_factory=dict)
    groups: Annotated[Sequence[SavedGroup], NEEDED] = ()
    modules: Annotated[Mapping[str, Any], NEEDED, Json(says="Path of a module -> its extra state.")] = field(
        default_factory=dict
    )
    given: Annotated[
        Sequence[Any],
        NEEDED,
        Json(
            says="What each rank was given to keep. An object with the key $ stands for a tensor, tuple, dict, "
            "counter, array, bytes or number that is not finite."
        ),
    ] = ()

    def write(self, folder: Path) -> None:
        """Put the index into its folder, then remove the files of checkpoints that were there before."""
        CHECKPOINT.write(folder / INDEX, self)
        named = {name for name, _ in self.files}
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in named:
                path.unlink(missing_ok=True)


def _settled(values: dict[str, Any], node: Node) -> None:
    """Refuse parts that lie outside of their tensor or in no file."""
    for name, stored in values["tensors"].items():
        for index, part in enumerate(stored.parts):
            if part.file < len(values["files"]) and part.lies_in(stored.shape):
                continue
            place = node.child("tensors").child(name).child("parts").items()[index]
            place.child("file").integer(0, len(values["files"]) - 1)
            place.fail(f"a part of a tensor of the shape {list(stored.shape)} is needed here")


CHECKPOINT: Document[Index] = Document(FORMAT, 1, record(Index, settle=_settled))


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
    return CHECKPOINT.read(path)


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
