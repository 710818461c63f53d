"""Values of flags that several commands take, each with one clear error."""

import argparse
from fractions import Fraction

from planner.plan.rank_order import RANK_ORDER, completed

GIB = 2**30
MEMORY_GIB = 80.0
"""Of a device of which nothing is known."""
LONGEST_NS = 86_400 * 10**9
LONGEST_S = 10**6
"""Eleven days: waits for longer are beyond what systems can be told."""
MANY = 10**18
LARGEST = 10**9
"""Of an amount, which in GiB and in GB/s keeps sums within 64 bits."""


def positive(text: str) -> int:
    """Read a whole number from 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; a whole number from 1 is needed")
    return value


def nanoseconds(text: str) -> int:
    """Read a time in whole nanoseconds, a day at most: sums over all micro-batches must fit 64 bits."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= LONGEST_NS:
        raise argparse.ArgumentTypeError(f"found {text!r}; whole nanoseconds from 0 to {LONGEST_NS} (a day) are needed")
    return value


def seed(text: str) -> int:
    """Read a seed."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"found {text!r}; a whole number from 0 to 2^63 - 1 is needed")
    return value


def few_bytes(text: str) -> int:
    """Read the bytes of one number."""
    value = positive(text)
    if value > 64:
        raise argparse.ArgumentTypeError(f"found {text!r}; 1 to 64 bytes are needed")
    return value


def amount(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LARGEST:
        raise argparse.ArgumentTypeError(f"found {text!r}; a number above 0 and up to {LARGEST} is needed")
    return value


def many(text: str) -> int:
    """Read a large whole number, as ``15T``, ``300B``, ``4M`` or ``1.5e13``."""
    factor = {"T": 10**12, "B": 10**9, "M": 10**6, "K": 10**3}.get(text[-1:].upper(), 1)
    try:
        value = Fraction(text[:-1] if factor > 1 else text) * factor
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 1 <= value <= MANY:
        raise argparse.ArgumentTypeError(f"found {text!r}; a number from 1 to 10^18 is needed, as in 15T, 300B or 2e12")
    return round(value)


def rank_order(text: str) -> str:
    """Read names of degrees, the innermost first; those left out follow the one that they usually do."""
    names = [name.strip() for name in text.split(",")]
    if len(set(names)) < len(names) or not set(names) <= set(RANK_ORDER):
        raise argparse.ArgumentTypeError(
            f"found {text!r}; names of {', '.join(RANK_ORDER)} are needed, each once at most, the innermost first, as "
            "in tensor,pipeline,data"
        )
    return ",".join(completed(names))


def exact_amount(text: str) -> Fraction:
    """Read a decimal number above 0 as what it says, so that a product with it loses nothing."""
    amount(text)
    return Fraction(text)


def limit(text: str) -> float:
    """Read a limit of time or work, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"found {text!r}; a number from 0 to {LONGEST_S} is needed")
    return value


def gibibytes(text: str) -> int:
    """Read GiB into bytes."""
    return round(amount(text) * GIB)


def room(text: str) -> int:
    """Read GiB, or 0, into bytes."""
    return round(limit(text) * GIB)


def fraction(text: str) -> float:
    """Read a number from 0 to 1, to six decimals."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; a number from 0 to 1 is needed")
    return round(value, 6)


def few_percent(text: str) -> float:
    """Read per cent from 0 to 99, with the sign or without, as a share."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; per cent from 0 and below 100 are needed, as in 2.5")
    return value


def percent(text: str) -> Fraction:
    """Read ``5%`` as 1/20; above 0 and below 100 %."""
    number = text.removesuffix("%")
    try:
        value = exact_amount(number) / 100 if number != text else Fraction(1)
    except argparse.ArgumentTypeError:
        value = Fraction(1)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; per cent above 0 % and below 100 % are needed, as in 5%")
    return value
