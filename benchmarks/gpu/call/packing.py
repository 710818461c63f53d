"""What comes back: rows, logs, profiles, traces and files, packed into five files below the limit of a transfer.

Standard library alone. Packed anew after every step, so that a call that is cut off has lost nothing but its last step.
"""

import gzip
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

LIMIT_BYTES = 15 * 2**20
"""A file of the result: 8 of 16 MiB come back."""

ARCHIVES: tuple[tuple[str, str, Literal["w:", "w:gz"]], ...] = (
    ("logs.tar.gz", "*", "w:gz"),
    ("profiles.tar", "*.json.gz*", "w:"),  # the journal of one that broke off, too
    ("traces.tar", "*", "w:"),
    ("files.tar.gz", "*", "w:gz"),
)
"""An archive, which files of the working folder of its name it holds, and how it is written."""


def read_rows(work: Path) -> list[dict[str, Any]]:
    """Return the rows that all processes have written so far."""
    found = []
    for path in sorted((work / "rows").glob("*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):  # the process was killed in the middle of it
                found.append(json.loads(line))
    return found


def pack(out: Path, work: Path, head: Mapping[str, object]) -> None:
    """Write all that there is; the rows come below `head`."""
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "rows.json", json.dumps({**head, "rows": read_rows(work)}, indent=1).encode())
    for name, pattern, mode in ARCHIVES:
        found = (work / name.partition(".")[0]).rglob(pattern)
        _write(out / name, _archive(sorted(path for path in found if path.is_file()), mode))


def _archive(paths: Sequence[Path], mode: Literal["w:", "w:gz"]) -> bytes:
    """Return an archive below the limit: where all do not go in, the largest files stay out and are named."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for path in paths:
            with suppress(FileNotFoundError):  # a journal goes when its profile is there
                archive.add(path, path.name)
        sizes = {member.name: member.size for member in archive.getmembers()}
    if len(buffer.getvalue()) <= LIMIT_BYTES or not sizes:
        return buffer.getvalue()
    largest = max(sizes, key=sizes.__getitem__)
    print(f"{largest}: {sizes[largest] / 2**20:.0f} MiB do not come back", flush=True)
    return _archive([path for path in paths if path.name != largest], mode)


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; rows that pass the limit are compressed, ten to one and more."""
    if len(data) > LIMIT_BYTES:
        path.unlink(missing_ok=True)
        data, path = gzip.compress(data), path.with_name(path.name + ".gz")
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(data)
    temporary.replace(path)
