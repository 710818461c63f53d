"""Tensors by name from a safetensors file, one at a time and each once: what a rank does not ask for is never read.

The format: eight bytes with the length of a JSON header, which gives each tensor's type, shape and place behind it
(huggingface.co/docs/safetensors). Nothing in it can run. Leaves out writing, and models spread over several files.
"""

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from costmodel.errors import DoesNotMatch, InvalidInput

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_LONGEST_HEADER = 100 * 2**20


class TensorFile:
    """A safetensors file.

    Parameters
    ----------
    path : path

    Raises
    ------
    InvalidInput
        When it is none.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            size = self._path.stat().st_size
            with self._path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length)) if 2 <= length <= min(size - 8, _LONGEST_HEADER) else None
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{self._path}: cannot be read as safetensors: {error}") from None
        if not isinstance(header, dict):
            raise InvalidInput(f"{self._path}: is no safetensors file: its first eight bytes give no header's length")
        self._start, self._end = 8 + length, size
        self._entries = {name: entry for name, entry in header.items() if name != "__metadata__"}

    def read(self, names: Sequence[str], like: torch.Tensor) -> torch.Tensor:
        """Return the tensor that the file has under one of a parameter's names.

        Raises
        ------
        DoesNotMatch
            When it has none, or one of another shape.
        InvalidInput
            When the file's entry is broken.
        """
        name = next((name for name in names if name in self._entries), None)
        if name is None:
            raise DoesNotMatch(f"{self._path} holds no tensor {names[0]!r}; a function of (name, tensor) may give it")
        dtype, shape, first, stop = self._entry(name)
        if shape != list(like.shape):
            raise DoesNotMatch(f"{self._path}: {name!r} has the shape {shape}, and {list(like.shape)} in the model")
        if not prod(shape):
            return torch.empty(shape, dtype=dtype)
        with self._path.open("rb") as file:
            file.seek(first)
            data = bytearray(stop - first)
            file.readinto(data)
        return torch.frombuffer(data, dtype=dtype).reshape(shape)

    def _entry(self, name: str) -> tuple[torch.dtype, list[int], int, int]:
        entry: Any = self._entries[name]
        try:
            dtype, shape = _DTYPES[entry["dtype"]], [int(n) for n in entry["shape"]]
            first, stop = (self._start + int(place) for place in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(f"{self._path}: the entry {name!r} gives no known type, shape and place") from None
        if not self._start <= first <= stop <= self._end or stop - first != prod(shape) * dtype.itemsize:
            raise InvalidInput(f"{self._path}: the entry {name!r} lies outside of the file or has a wrong length")
        return dtype, shape, first, stop
