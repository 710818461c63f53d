"""Tensors by name in a safetensors file, written and read one at a time: what a rank does not ask for is never read.

The format: eight bytes with the length of a JSON header, which gives each tensor's type, shape and place behind it
(huggingface.co/docs/safetensors). Nothing in it can run. Leaves out models spread over several files.
"""

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from costmodel.errors import DoesNotMatch, InvalidInput

TYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "C64": torch.complex64, "C128": torch.complex128,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in TYPES.items()}
"""Types of tensors that a file can hold, by what they are called in it."""

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
        said = header.get("__metadata__", {})
        self.metadata: dict[str, str] = dict(said) if isinstance(said, dict) else {}

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
        return self._bytes(dtype, shape, first, stop)

    def rows(self, name: str, start: int = 0, count: int | None = None) -> torch.Tensor:
        """Return a tensor, or of its first dimension `count` entries from `start` on.

        Raises
        ------
        InvalidInput
            When the file has no such tensor, or its entry is broken.
        """
        if name not in self._entries:
            raise InvalidInput(f"{self._path} holds no tensor {name!r}")
        dtype, shape, first, stop = self._entry(name)
        if shape and count is not None:
            each = (stop - first) // max(shape[0], 1)
            shape = [max(0, min(count, shape[0] - start)), *shape[1:]]
            first, stop = first + start * each, first + (start + shape[0]) * each
        return self._bytes(dtype, shape, first, stop)

    def _bytes(self, dtype: torch.dtype, shape: Sequence[int], first: int, stop: int) -> torch.Tensor:
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
            dtype, shape = TYPES[entry["dtype"]], [int(n) for n in entry["shape"]]
            first, stop = (self._start + int(place) for place in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(f"{self._path}: the entry {name!r} gives no known type, shape and place") from None
        if not self._start <= first <= stop <= self._end or stop - first != prod(shape) * dtype.itemsize:
            raise InvalidInput(f"{self._path}: the entry {name!r} lies outside of the file or has a wrong length")
        return dtype, shape, first, stop


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> int:
    """Write tensors, of any device, to a file that is not there yet, and flush it to disk; returns its bytes.

    Raises
    ------
    OSError
        When the system refuses.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    place = 0
    for name, tensor in tensors.items():
        end = place + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            if plain.numel():  # without numpy, which torch's own way to bytes needs
                file.write((ctypes.c_char * plain.nbytes).from_address(plain.data_ptr()))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()
