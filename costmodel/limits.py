"""How large a question may be: one table, looked at before any work begins.

Beyond a limit there is one refusal, which says what was found and how to raise the limit (``--limit NAME=NUMBER`` of
every command). What takes long within it is announced. Leaves out how long a search may take: that has its own clock.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from costmodel.errors import UsageError

SECONDS_UNANNOUNCED = 10


@dataclass(frozen=True, slots=True)
class Limit:
    """Most of a thing; what each took here, in time and memory, so that it can be announced (0: not by itself)."""

    most: int
    what: str
    time_ns: int = 0
    size_bytes: int = 0


LIMITS: Mapping[str, Limit] = {
    "actions": Limit(4_000_000, "actions of a schedule (stages x micro-batches x F, I and W)", 8_000, 1_500),
    "devices": Limit(65_536, "devices of a cluster"),
    "operators": Limit(100_000, "operators of a model"),
    "batch": Limit(10**9, "samples of a batch"),
    "scenarios": Limit(10_000, "scenarios of a plan"),
    "processes": Limit(64, "processes that are started on this machine"),
    "bytes": Limit(2**30, "bytes of a file, decompressed"),
}

_raised: ContextVar[Mapping[str, int] | None] = ContextVar("_raised", default=None)


@contextmanager
def raised(most: Mapping[str, int]) -> Iterator[None]:
    """Take other limits in here."""
    token = _raised.set(most)
    try:
        yield
    finally:
        _raised.reset(token)


def most(name: str) -> int:
    """Return the limit in force."""
    return (_raised.get() or {}).get(name, LIMITS[name].most)


def check(name: str, number: int, source: str, *, at_least: bool = False) -> None:
    """Refuse more than there may be; `at_least` where they are not counted to the end.

    Raises
    ------
    UsageError
        Says what was found where, what is allowed, and how to raise it.
    """
    if number > most(name):
        found, more = (f"at least {number}", "N allows N") if at_least else (f"{number}", f"{number} allows more")
        text = f"{source}: {found} {LIMITS[name].what}; at most {most(name)} unless --limit {name}={more}"
        raise UsageError(text + _cost(name, number))


def announced(name: str, number: int) -> str:
    """Return what a number of things may take, where that is long; else nothing."""
    limit = LIMITS[name]
    return "" if number * limit.time_ns < SECONDS_UNANNOUNCED * 10**9 else f"{number} {limit.what}{_cost(name, number)}"


def _cost(name: str, number: int) -> str:
    limit = LIMITS[name]
    if not limit.time_ns:
        return ""
    return f", about {number * limit.time_ns / 1e9:.3g} s and {number * limit.size_bytes / 2**30:.3g} GiB"


def read_limits(texts: list[str]) -> dict[str, int]:
    """Read ``NAME=NUMBER``.

    Raises
    ------
    UsageError
        For a name that there is not, or no whole number from 1.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in LIMITS or not (value.isascii() and value.isdigit() and len(value) < 16 and int(value)):
            raise UsageError(
                f"--limit {text}: NAME=NUMBER is needed, NAME one of {', '.join(LIMITS)}, NUMBER of at most 15 digits"
            )
        found[name] = int(value)
    return found
