"""Putting bytes where a path says, as a whole: whoever reads a file sees the old or the new one, never a part.

A regular file is written under a temporary name in its folder, flushed to disk and renamed; a link is followed to what
it names; a device or a pipe is written to, for there is nothing to replace. What a killed write left behind is cleared
by the next one. Leaves out what the bytes say (`costmodel.files`).
"""

import fcntl
import gzip
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from costmodel.errors import InvalidInput, UsageError

HEAD_BYTES = 4096
"""Within which a file says what it is."""


def place(path: str | Path, data: bytes) -> None:
    """Write bytes.

    Raises
    ------
    UsageError
        When the path is a folder, or a socket.
    InvalidInput
        When the system refuses: no permission, no space.
    """
    target = Path(os.path.realpath(path))
    try:
        kind = target.stat().st_mode if target.exists() else stat.S_IFREG
        if stat.S_ISDIR(kind) or stat.S_ISSOCK(kind):
            raise UsageError(f"{path} is a {'folder' if stat.S_ISDIR(kind) else 'socket'}; name a file to write")
        if stat.S_ISREG(kind):
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(target, data)
        else:
            with target.open("wb") as file:
                file.write(data)
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be written: {error.strerror}; name a folder that you may write to and that has room"
        ) from None


def _replace(target: Path, data: bytes) -> None:
    """Write a temporary file in the same folder and rename it; then flush the folder, which a power cut may lose."""
    _clear(target)
    handle, temporary = _locked_temporary(target)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _locked_temporary(target: Path) -> tuple[int, str]:
    """Make a file in the target's folder that is locked until it is closed: who finds it locked leaves it alone."""
    while True:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(temporary):  # else another writer cleared it before it was locked
            return handle, temporary
        os.close(handle)


def _clear(target: Path) -> None:
    """Remove what writers of this file that are no more left behind: nobody holds it locked."""
    for left in target.parent.glob(f".{_literal(target.name)}.*.tmp"):
        with suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def check_kind(path: str | Path, mark: str, kind: str) -> None:
    """Refuse to write over a file of another kind: one that does not begin with a mark.

    Raises
    ------
    UsageError
        Says what was to be written.
    """
    file = Path(path)
    if not file.is_file() or not file.stat().st_size:
        return
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            head = opened.read(HEAD_BYTES).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        head = ""
    if not re.search(mark, head):
        raise UsageError(f"{path} holds something else than {kind}; name another file to write, or remove that one")


def check_format(path: str | Path, kind: str) -> None:
    """Refuse to write a file of ours over what is none of its kind; see `check_kind`."""
    check_kind(path, rf'"format"\s*:\s*"{kind}"', f"a {kind} file")


def check_outputs(outputs: Iterable[str], inputs: Iterable[str]) -> None:
    """Refuse to write over what is read, or two things into one file.

    Raises
    ------
    UsageError
        Names the file.
    """
    read = {os.path.realpath(path): path for path in inputs if os.path.isfile(path)}
    written: dict[str, str] = {}
    for path in outputs:
        real = os.path.realpath(path)
        if real in read:
            raise UsageError(f"{path} would be written over {read[real]}, which is read; name another file to write")
        if real in written and os.path.isfile(real) == os.path.exists(real):
            raise UsageError(f"{path} and {written[real]} are one file, and two are to be written; name another")
        written[real] = path


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
