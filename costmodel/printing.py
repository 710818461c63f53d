"""Text that people are shown, on a terminal or a page: names from files may hold what must not reach either.

Leaves out what HTML wants besides (`planner.report.html`).
"""

import re

_UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, marks that turn the direction of writing or are not seen, and halves of characters."""


def printable(text: str, kept: str = "") -> str:
    r"""Return text with what must not reach a terminal or a page as escapes: ``\x1b``; `kept` names what may stay."""
    return _UNSHOWN.sub(lambda found: found[0] if found[0] in kept else ascii(found[0])[1:-1], text)
