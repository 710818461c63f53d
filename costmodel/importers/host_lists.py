"""Slurm's lists of host names: ``r[1-2]n[1-4],gpu[08-10]-ib`` is r1n1, r1n2, ..., r2n4, gpu08-ib, gpu09-ib, gpu10-ib.

Names are separated by commas outside brackets; a name is text and brackets in any order, and the brackets multiply.
Grammar: list = name {"," name}; name = (text | "[" span {"," span} "]")+; span = number ["-" number], where the first
number's zeros are kept. Leaves out node sets, and numbers that are not decimal.
"""

import re
from collections import Counter
from itertools import product

from costmodel.errors import InvalidInput

MOST_NAMES = 1_000_000
"""Names that a list may represent; more is a slip of the pen."""
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_SPAN = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand(names: str) -> list[str]:
    """Return the names of a list, in its order.

    Raises
    ------
    InvalidInput
        When brackets do not close, a range falls, a name is empty or occurs twice, or there are more than `MOST_NAMES`.
    """
    found: list[str] = []
    position = 0
    while position < len(names) or not found:
        choices: list[list[str]] = []
        while part := _PART.match(names, position):
            choices.append(_numbers(part[1], names) if part[1] is not None else [part[2]])
            position = part.end()
        if position < len(names) and names[position] != ",":
            raise InvalidInput(
                f"the names {names[:60]!r} leave a bracket open at sign {position + 1}; Slurm writes them like n[1-4,7]"
            )
        if not choices or position + 1 == len(names):
            raise InvalidInput(f"the names {names[:60]!r} hold an empty one at sign {position + 1}; take out the comma")
        _check_number(found, choices, names)
        found += map("".join, product(*choices))
        position += 1
    if len(set(found)) < len(found):
        raise InvalidInput(f"the names {names[:60]!r} hold {Counter(found).most_common(1)[0][0]!r} twice; keep one")
    return found


def _check_number(found: list[str], choices: list[list[str]], names: str) -> None:
    count = 1
    for row in choices:
        count *= len(row)
    if len(found) + count > MOST_NAMES:
        raise InvalidInput(f"the names {names[:60]!r} are more than {MOST_NAMES}, which no machine has")


def _numbers(inner: str, names: str) -> list[str]:
    """Return what stands for a bracket."""
    found: list[str] = []
    for span in inner.split(","):
        match = _SPAN.fullmatch(span.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_NAMES - len(found):
            raise InvalidInput(
                f"the names {names[:60]!r}: {span[:40]!r} is no rising range of at most {MOST_NAMES} numbers"
            )
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found
