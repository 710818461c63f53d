"""What people are shown: units of sizes, and text from files without what must not reach a terminal or a page.

Leaves out what HTML wants besides (`planner.report.html`).
"""

import re

_UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, marks that turn the direction of writing or are not seen, and halves of characters."""


def printable(text: str, kept: str = "") -> str:
    r"""Return text with what must not reach a terminal or a page as escapes: ``\x1b``; `kept` names what may stay."""
    return _UNSHOWN.sub(lambda found: found[0] if found[0] in kept else ascii(found[0])[1:-1], text)


_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def unit_of(size_bytes: float) -> tuple[str, int]:
    """Return the largest unit that a size fills, and its bytes."""
    return next((unit for unit in _UNITS if size_bytes >= unit[1]), ("bytes", 1))
