"""A small store of arrays in the user's cache, for sums that a later command would make again.

One file per key, whose name is the key: a digest of its key and content, then numpy's `.npz`. A file that is damaged,
cut short, too large or of another key counts as missing, and nothing in one is run as code. A home that is missing or
read-only costs time alone. Leaves out what the arrays mean: the caller makes the key of all that they depend on
(content and fingerprint of the profile, device, calibration, version of this program, options).
"""

import io
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.search.space.cache_folder import cache_folder, can_write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

MOST_BYTES = 64 << 20
"""Of all files together; the oldest are deleted first."""
MOST_FILE_BYTES = 16 << 20
KEY = re.compile(r"[0-9a-f]{16,128}")
DIGEST_BYTES = sha256().digest_size


def load(key: str) -> "dict[str, NDArray[Any]] | None":
    """Return the arrays that were saved under a key, by name; None where there are none that can be read.

    Parameters
    ----------
    key : str
        16 to 128 hexadecimal digits.

    Raises
    ------
    ValueError
        Where the key is none.
    """
    path = _path(key)
    if path is None:
        return None
    try:
        if not path.is_file() or path.stat().st_size > MOST_FILE_BYTES:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    body = content[DIGEST_BYTES:]
    return _arrays(body) if content[:DIGEST_BYTES] == _digest(key, body) else None


def save(key: str, arrays: "Arrays") -> None:
    """Keep arrays under a key, as far as the folder and its size allow; those that were there are replaced.

    Parameters
    ----------
    key : str
        16 to 128 hexadecimal digits.
    arrays : mapping of str to array
        Of numbers, truth values or text of fixed length, `MOST_FILE_BYTES` together at most, or nothing is kept.

    Raises
    ------
    ValueError
        Where the key is none, or an array has Python objects.
    """
    import numpy as np  # here alone: most commands keep nothing

    path, written = _path(key), io.BytesIO()
    if any(array.dtype.hasobject for array in arrays.values()):
        raise ValueError("an array of Python objects cannot be kept: allowed are numbers, truth values and text")
    if path is None or sum(array.nbytes for array in arrays.values()) > MOST_FILE_BYTES:
        return
    with zipfile.ZipFile(written, "w") as packed:
        for name, array in arrays.items():
            with packed.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    body = written.getvalue()
    if DIGEST_BYTES + len(body) > MOST_FILE_BYTES or not can_write(path.parent):
        return
    with suppress(OSError):
        _write(path, _digest(key, body) + body)
        _drop_oldest(path.parent)


def _path(key: str) -> Path | None:
    if not KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no key: 16 to 128 digits of a hexadecimal digest are allowed")
    folder = cache_folder("sums")
    return folder / key if folder else None


def _digest(key: str, body: bytes) -> bytes:
    return sha256(key.encode() + b"\0" + body).digest()


def _arrays(body: bytes) -> "dict[str, NDArray[Any]] | None":
    """Return the arrays of a file that is as it was written, by us or by whoever knows how."""
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(body)) as packed:
            if sum(member.file_size for member in packed.infolist()) > MOST_FILE_BYTES:
                return None
        with np.load(io.BytesIO(body), allow_pickle=False) as found:
            return dict(found)
    except Exception:  # zipfile and numpy raise a dozen kinds of errors for what is no archive of arrays
        return None


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, whoever else writes it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _drop_oldest(folder: Path) -> None:
    """Delete the oldest files, those that a killed writer left among them, until the others are within the limit."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process has deleted it
            stat = path.stat()
            found.append((stat.st_mtime_ns, stat.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        left -= size
