"""Constants that measurements of whole jobs set: sustained rates, shares of links, what a call costs a host.

Each is a factor or a time with bounds, named by what it represents and on what: ``matmul.b200-sxm-180.bf16`` is by how
much large matmuls there take longer than the tables of `costmodel.roofline` say. `constants.toml` holds those fitted
on published jobs (docs/validation.md), a calibration file those of a user's own; what neither holds is 1, or no time at
all. Leaves out fitting (`planner.measured.fit_constants`).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import Node, document, read_toml
from costmodel.machines.catalogue import PRECISIONS, device

FORMAT, VERSION = "penstock-calibration", 1
FILE = Path(__file__).with_name("constants.toml")
COMPUTE = {"matmul": "matmul", "convolution": "matmul", "attention": "attention"}
"""Constants of kinds of work; any other kind is bound by memory."""
BOUNDS = {
    "matmul": (0.7, 2.5), "attention": (0.5, 4.0), "memory": (0.5, 3.0), "scaleup": (0.5, 4.0), "network": (0.5, 6.0),
    "host": (0.0, 200.0), "unfused": (1.0, 4.0), "fp8": (0.7, 3.0), "coupled": (0.0, 0.5),
}  # fmt: skip
"""Smallest and largest value of each: factors on times, microseconds of a call (``host``)."""
RATES, LINKS = (*dict.fromkeys(COMPUTE.values()), "memory"), ("scaleup", "network")
"""Those of a device in a precision, and of a device alone; the others are a trainer's."""

UNFITTED = 0.25
"""Mean relative error of steps on devices that no constant was fitted on (`benchmarks.left_out`: 9 to 34 %)."""
LEAST_ERROR = 0.03
"""That of the best source (docs/validation.md); a fit to few jobs that are much alike would say less."""
MOST_ERROR = 10.0
"""Beyond it an interval says nothing, and its ends no file takes."""
FOUR_OF_FIVE = 1.6
"""Normally distributed errors are below this multiple of their mean size in four cases of five."""
UNKNOWN = {"host": 10.0, "coupled": 0.1}
"""Where fits begin that know nothing of these; others begin at 1."""


@dataclass(frozen=True)
class Calibration:
    """Constants by name.

    Attributes
    ----------
    values : mapping of str to float
    digest : str
        Of what was read in addition to `constants.toml`; empty for that alone.
    errors : mapping of str to float
        Of a constant, where it is known: mean relative error of steps of jobs that its fit was without.
    """

    values: Mapping[str, float]
    digest: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)

    def factor(self, kind: str, device: str, precision: str) -> float:
        """By how much an operator of a kind of work takes longer than the tables say."""
        return self.values.get(rate_name(kind, device, precision), 1.0)

    def shares(self, device: str) -> tuple[float, float]:
        """Return what of the rates of links within and between typical hosts is reached."""
        return 1 / self.values.get(f"scaleup.{device}", 1.0), 1 / self.values.get(f"network.{device}", 1.0)

    def of_trainer(self, what: str, trainer: str) -> float:
        """Return what is known of a trainer, else of its versions of today (``megatron`` for ``megatron-2022``).

        Microseconds of one of its ``host`` calls, the part of them that is ``coupled``, factors ``unfused`` and
        ``fp8``.
        """
        today = self.values.get(f"{what}.{trainer.partition('-')[0]}", 1.0 if what in ("unfused", "fp8") else 0.0)
        return self.values.get(f"{what}.{trainer}", today)

    def value(self, name: str) -> float:
        """Return a constant, or from where a fit of it begins that nobody has fitted."""
        return self.values.get(name) or UNKNOWN.get(name.partition(".")[0], 1.0)

    def with_values(
        self, values: Mapping[str, float], digest: str = "", errors: Mapping[str, float] | None = None
    ) -> "Calibration":
        """Return the calibration with some values, and their errors, in place of its own."""
        same = (name for name in self.errors if values.get(name, self.values[name]) == self.values[name])
        kept = {name: self.errors[name] for name in same}
        return Calibration({**self.values, **values}, digest or self.digest, {**kept, **(errors or {})})

    def step_error(self, devices: Iterable[str], precision: str, trainer: str) -> float:
        """Return the mean relative error that steps are to be expected to have: the largest of all that they rest on.

        That is `UNFITTED` for a device that no constant is known of, and for a constant whose error is not known.
        """
        rows = [[*self._of_device(device, precision)] or [UNFITTED] for device in devices]
        return max([LEAST_ERROR, *(error for row in rows for error in row), *self._of_trainer(trainer, precision)])

    def is_fitted(self, device: str, precision: str) -> bool:
        """Whether any constant of a device was fitted, or given."""
        return any(self._of_device(device, precision))

    def _of_device(self, device: str, precision: str) -> Iterator[float]:
        rates = {rate_name(kind, device, precision) for kind in (*COMPUTE, "")}
        for name in (*rates, f"scaleup.{device}", f"network.{device}"):
            if name in self.values:
                yield self.errors.get(name, UNFITTED)

    def _of_trainer(self, trainer: str, precision: str) -> Iterator[float]:
        for what in ("host", "coupled", *(["fp8"] if precision == "fp8" else [])):
            own, today = f"{what}.{trainer}", f"{what}.{trainer.partition('-')[0]}"
            name = own if own in self.values else today
            if name in self.values:
                yield self.errors.get(name, UNFITTED)


def rate_name(kind: str, device: str, precision: str) -> str:
    """Return the name of the constant of a kind of work; under fp8 all but matrix products run in bf16."""
    name = COMPUTE.get(kind, "memory")
    return f"{name}.{device}.{'bf16' if precision == 'fp8' and name != 'matmul' else precision}"


@cache
def published() -> Calibration:
    """Return the constants of `constants.toml`."""
    values, errors = _read(FILE)
    return Calibration(values, errors=errors)


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; what it does not hold is as published.

    Raises
    ------
    InvalidInput
        When it cannot be read, or holds a constant that there is not or that is out of bounds.
    """
    values, errors = _read(path)
    return published().with_values(values, digest_of(values), errors)


def interval_ns(step_ns: int, error: float) -> tuple[int, int]:
    """Return between what four of five measured steps lie, by the mean relative error of such predictions."""
    wide = (1 + error) ** FOUR_OF_FIVE
    return math.floor(step_ns / wide), math.ceil(step_ns * wide)


def to_toml(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a calibration file: a table for each constant, with its remarks."""
    lines = [f'format = "{FORMAT}"', f"version = {VERSION}"]
    for row in rows:
        lines += ["", "[[constant]]", *(f"{key} = {_written(value)}" for key, value in row.items())]
    return "\n".join(lines if rows else [*lines, "constant = []"]) + "\n"


def _written(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def digest_of(values: Mapping[str, float]) -> str:
    """SHA-256 of constants, short."""
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:16]


def _read(path: str | Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return constants, and the errors of those that say theirs."""
    members = document(read_toml(path), FORMAT, VERSION, ("constant",), ("provenance", "extra"))
    found: dict[str, float] = {}
    errors: dict[str, float] = {}
    for node in members["constant"].items():
        row = node.members(("name", "value"), ("low", "high", "fitted_on", "rows", "error_percent", "left_out_percent"))
        name, value = row["name"].text(), row["value"].number()
        if name in found:
            row["name"].fail("it occurs twice; keep one of them")
        if name.partition(".")[0] not in BOUNDS:
            row["name"].fail(f"constants begin with {', '.join(BOUNDS)}")
        _check_name(row["name"])
        low, high = bounds(name)
        if not low <= value <= high:
            row["value"].fail(f"{name} lies between {low:g} and {high:g}")
        found[name] = value
        if "left_out_percent" in row:
            errors[name] = min(row["left_out_percent"].number() / 100, MOST_ERROR)
    return found, errors


def _check_name(node: Node) -> None:
    """Refuse what no device and no trainer has: it would do nothing."""
    kind, *of = node.text().split(".")
    what = "device" if kind in (*RATES, *LINKS) else "trainer"
    if len(of) != (2 if kind in RATES else 1) or (kind in RATES and of[1] not in PRECISIONS):
        shape = f"{kind}.DEVICE.PRECISION, of {', '.join(PRECISIONS)}" if kind in RATES else f"{kind}.{what.upper()}"
        node.fail(f"it is called {shape}")
    if what == "device":
        node.build(partial(device, of[0]))


def bounds(name: str) -> tuple[float, float]:
    """Return between what a constant lies.

    Raises
    ------
    InvalidInput
        For a constant that there is not.
    """
    kind = name.partition(".")[0]
    if kind not in BOUNDS:
        raise InvalidInput(f"{name!r} is no constant; they begin with {', '.join(BOUNDS)}")
    return BOUNDS[kind]
