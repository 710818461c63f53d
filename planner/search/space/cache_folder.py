"""The user's cache folder: what is kept between commands, to spare time and nothing else.

It is `$XDG_CACHE_HOME/penstock`, else `~/.cache/penstock`. It may be missing, read-only or emptied at any moment:
results are the same without it. Leaves out what is kept there (`planner.search.solvers.kernel_cache`,
`planner.search.space.sums_cache`).
"""

import os
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """Return the path of a named folder in the user's cache, which may not be there; None without a home folder."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # relative ones are to be ignored, by the XDG base directory specification
        return given / "penstock" / name
    try:
        return Path.home() / ".cache" / "penstock" / name
    except RuntimeError:
        return None


def can_write(folder: Path) -> bool:
    """Whether files can be made in a folder, which is created that others cannot write to if it is missing."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
