"""What ``--set KEY=VALUE`` and ``--sweep KEY=V1,V2,...`` say: keys, units, factors, and lists with ``...`` in them.

Leaves out what a change does (`planner.report.whatif.plan_changes`).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from costmodel.errors import UsageError

RATE = {"GB/s": Fraction(1), "MB/s": Fraction(1, 1000), "TB/s": Fraction(1000), "Gb/s": Fraction(1, 8)}
DELAY = {"us": Fraction(1000), "ns": Fraction(1), "ms": Fraction(10**6)}
SIZE = {"GiB": Fraction(2**30), "MiB": Fraction(2**20), "GB": Fraction(10**9), "MB": Fraction(10**6)}
PLAIN = {"": Fraction(1)}

UNITS: Mapping[tuple[str, str], Mapping[str, Fraction]] = {
    ("link", "bandwidth"): RATE,
    ("link", "latency"): DELAY,
    ("link", "shared"): RATE,
    ("device", "memory"): SIZE,
    ("device", "speed"): PLAIN,
    ("rank", "speed"): PLAIN,
    ("stage", "time"): {},
}
"""Units of what an absolute value may be given in, the first where none is; none: only factors."""
MICROBATCHES, SCHEDULE, DEVICES = WHOLE_KEYS = ("microbatches", "schedule", "devices")
KEYS = (
    "link.NAME.bandwidth, link.NAME.latency, link.NAME.shared, device.NAME.memory, device.NAME.speed, rank.N.speed, "
    "stage.N.time, microbatches, schedule"
)
MAY_BE_NOTHING = ("latency", "shared")
LARGEST = 10**9
MOST_VALUES = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """One key with its value.

    Attributes
    ----------
    key, text : str
        As given: ``link.ib.bandwidth``, ``2x``.
    kind, name, part : str
        The key's parts; name and part are empty where it has one.
    number : Fraction
        The factor, or the value in 10^9 bytes a second, ns, bytes or as a number; 0 for a schedule.
    is_factor : bool
    """

    key: str
    text: str
    kind: str
    name: str = ""
    part: str = ""
    number: Fraction = Fraction(0)
    is_factor: bool = False

    def __str__(self) -> str:
        return f"{self.key}={self.text}"

    def of(self, before: Fraction) -> Fraction:
        """Return the new value from the old one."""
        return before * self.number if self.is_factor else self.number

    @property
    def index(self) -> int:
        """The number of the rank or stage that it names."""
        return int(self.name)


def parse_change(text: str) -> Change:
    """Read ``KEY=VALUE``.

    Raises
    ------
    UsageError
        Says what was found and what is allowed.
    """
    key, sign, value = text.partition("=")
    if not sign or not value:
        raise UsageError(f"found {text!r}; KEY=VALUE is needed, as in link.ib.bandwidth=2x")
    return change_of(key.strip(), value.strip())


def change_of(key: str, value: str) -> Change:
    """Read a key and its value."""
    if key == SCHEDULE:
        return Change(key, value, key)
    if key in WHOLE_KEYS:
        if not value.isascii() or not value.isdigit() or len(value) > 10 or not 0 < int(value) <= LARGEST:
            raise UsageError(f"{key}={value}: found {value!r}; a whole number from 1 to {LARGEST} is needed")
        return Change(key, value, key, number=Fraction(int(value)))
    kind, _, rest = key.partition(".")
    name, _, part = rest.rpartition(".")
    if (kind, part) not in UNITS or not name:
        raise UsageError(f"no key is called {key!r}; there are {KEYS}")
    if kind in ("rank", "stage") and not (name.isascii() and name.isdigit() and len(name) < 10):
        raise UsageError(f"{key}: found {name!r}; {kind}s are numbered from 0")
    number, is_factor = _number(key, value, UNITS[kind, part])
    if number < 0 or (number == 0 and part not in MAY_BE_NOTHING):
        raise UsageError(f"{key}={value}: a value above 0 is needed")
    return Change(key, value, kind, name, part, number, is_factor)


def _number(key: str, value: str, units: Mapping[str, Fraction]) -> tuple[Fraction, bool]:
    """Read a number with ``x`` or a unit behind it."""
    found = re.fullmatch(r"(-?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)", value)
    number, unit = (_fraction(found[1]), found[2]) if found else (None, "")
    if number is not None and unit == "x":
        return number, True
    if number is not None and units and (not unit or unit in units):
        return number * (units[unit] if unit else next(iter(units.values()))), False
    names = [unit for unit in units if unit]
    absolute = f", or a value ({' or '.join(names)}, {names[0]} where none is given)" if names else ""
    absolute = absolute or (", or a number" if units else "")
    raise UsageError(f"{key}={value}: found {value!r}; a factor is needed, as in 2x{absolute}")


def _fraction(text: str) -> Fraction | None:
    """Read a decimal number as what it says; None for what is none, or too large to be meant."""
    try:
        about = float(text)
    except ValueError:
        return None
    if not math.isfinite(about) or (about and not 1e-30 < abs(about) < 1e30):
        return None
    return Fraction(text) if about else Fraction(0)


def parse_sweep(text: str) -> tuple[Change, ...]:
    """Read ``KEY=V1,V2,...,VN``; ``...`` goes on as the two values before it, up to the one behind it."""
    key, sign, values = text.partition("=")
    if not sign or not values:
        raise UsageError(f"found {text!r}; KEY=V1,V2,... is needed, as in link.ib.bandwidth=0.5x,1x,2x")
    parts = [part.strip() for part in values.split(",")]
    while "..." in parts:
        at = parts.index("...")
        if at < 2 or at + 1 >= len(parts):
            raise UsageError(f"{text}: '...' needs two values before it and one behind it, as in 8,16,...,512")
        parts[at : at + 1] = _between(text, parts[at - 2], parts[at - 1], parts[at + 1])
    changes = tuple(change_of(key.strip(), part) for part in parts)
    twice = next((c for i, c in enumerate(changes) if c in changes[:i]), None)
    if twice:
        raise UsageError(f"{text}: {twice.text} occurs twice; keep one of them")
    return changes


def _between(text: str, first: str, second: str, last: str) -> list[str]:
    """Return what lies between the second value and the last: times the same factor, else plus the same step."""
    tail = "x" if all(part.endswith("x") for part in (first, second, last)) else ""
    a, b, end = (_fraction(part.removesuffix("x")) for part in (first, second, last))
    if a and b and end:
        found = _steps(a, b, end, b / a, Fraction(0))
        found = _steps(a, b, end, Fraction(1), b - a) if found is None else found
        if found is not None:
            return [f"{each.numerator if each.denominator == 1 else float(each)}{tail}" for each in found]
    raise UsageError(
        f"{text}: from {first} and {second} no steps of one factor or difference lead to {last}; name the values"
    )


def _steps(
    first: Fraction, second: Fraction, last: Fraction, factor: Fraction, more: Fraction
) -> list[Fraction] | None:
    """Return the values behind the second one, each the one before times `factor` plus `more`; None if they miss."""
    found: list[Fraction] = []
    value = second * factor + more
    while first != second and (value < last) == (first < second) and value != last and len(found) < MOST_VALUES:
        found.append(value)
        value = value * factor + more
    return found if value == last else None
