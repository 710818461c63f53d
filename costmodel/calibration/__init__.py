"""Constants that measurements of whole jobs set: sustained rates, shares of links, what a call costs a host.

Each is a factor or a time with bounds, named by what it represents and on what: ``matmul.hopper.bf16`` is by how much
large matmuls take longer on devices of that family than the tables of `costmodel.roofline` say, ``matmul.h100-sxm-80.
bf16`` by how much those of one device take longer than its family's, ``efficiency.torchtitan`` by how much a trainer's
kernels do. `constants.toml` holds those fitted on published jobs (docs/validation.md), a calibration file those of a
user's own; what neither holds is 1, or no time at all. Leaves out fitting (`planner.measured.fit_constants`).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from costmodel.documents import document
from costmodel.errors import InvalidInput, UsageError
from costmodel.files import Node, read_toml
from costmodel.machines.catalogue import PRECISIONS, device, kept_in

FORMAT, VERSION = "penstock-calibration", 1
FILE = Path(__file__).with_name("constants.toml")
COMPUTE = {"matmul": "matmul", "convolution": "matmul", "attention": "attention"}
"""Constants of kinds of work; any other kind is bound by memory."""
BOUNDS = {
    "matmul": (0.5, 2.5), "attention": (0.4, 4.0), "memory": (0.4, 3.0), "scaleup": (0.4, 4.0), "network": (0.4, 6.0),
    "host": (0.0, 200.0), "unfused": (1.0, 4.0), "fp8": (0.7, 3.0), "coupled": (0.0, 0.5), "efficiency": (0.4, 4.0),
}  # fmt: skip
"""Smallest and largest value of each: factors on times, microseconds of a call (``host``)."""
TERMS = ("matmul", "grouped", "attention", "memory", "routed")
"""Kinds of work of which a trainer has an ``efficiency`` of its own: products of experts are ``grouped``, what moves
memory in a model that routes to experts is ``routed``."""
FAMILIES = {
    "v100": "volta", "t4": "turing", "a100": "ampere", "a10": "ampere", "a10g": "ampere", "a6000": "ampere",
    "rtx3090": "ampere", "l4": "ada", "l40s": "ada", "rtx4090": "ada", "h100": "hopper", "h200": "hopper",
    "gh200": "hopper", "b200": "blackwell", "b300": "blackwell", "gb200": "blackwell", "gb300": "blackwell",
    "rtx5090": "blackwell", "rtxpro6000": "blackwell", "mi300x": "cdna3", "mi325x": "cdna3", "mi350x": "cdna4",
    "mi355x": "cdna4",
}  # fmt: skip
"""Devices that run the same kernels, by what their catalogue ids begin with."""
KINDS = DENSE, ROUTED = ("dense", "experts")
"""Kinds of models, of which those that route to experts are priced less well."""
ANY, MEASURED = "any", "executor"
"""What holds for a trainer of which nothing is known, but for the one whose hosts are measured with the profile."""
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
UNKNOWN = {"host": 16.0, "coupled": 0.16}
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
        Of a constant of a user's own: mean relative error of steps of jobs that its fit was without.
    trainer : str
        Whose jobs the constants were fitted on; `ANY` where they hold for all.
    intervals : mapping of (trainer, standing, kind) to (float, float)
        Between which multiples of promised steps four of five measured ones of sources lie that a fit was without.
    """

    values: Mapping[str, float]
    digest: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    trainer: str = ANY
    intervals: Mapping[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)

    def factor(self, kind: str, device: str, precision: str) -> float:
        """By how much an operator of a kind of work takes longer than the tables say: its family's times its own."""
        names = (rate_name(kind, on, precision) for on in (family_of(device), device) if on)
        return math.prod(self.values.get(name, self.values.get(_as_bf16(name), 1.0)) for name in names)

    def shares(self, device: str) -> tuple[float, float]:
        """Return what of the rates of links within and between typical hosts is reached."""
        on = (family_of(device), device)
        scaleup, network = (math.prod(self.values.get(f"{link}.{name}", 1.0) for name in on) for link in LINKS)
        return 1 / scaleup, 1 / network

    def of_trainer(self, what: str, trainer: str) -> float:
        """Return what is known of a trainer, else of any version of it (``megatron`` for ``megatron-2022``), or of any.

        Microseconds of one of its ``host`` calls, the part of them that is ``coupled``, factors ``unfused``, ``fp8``
        and ``efficiency``; one of `TERMS` behind a dot tells a kind of work.
        """
        return next(
            (self.values[name] for name in _names(what, trainer) if name in self.values),
            0.0 if what in UNKNOWN else 1.0,
        )

    def efficiency(self, term: str, trainer: str) -> float:
        """By how much a trainer's kernels for a kind of work (`TERMS`) take longer than the tables say."""
        return self.of_trainer("efficiency", trainer) * self.of_trainer(f"efficiency:{term}", trainer)

    def value(self, name: str) -> float:
        """Return a constant, or from where a fit of it begins that nobody has fitted."""
        return self.values.get(name) or UNKNOWN.get(name.partition(".")[0], 1.0)

    def with_values(
        self, values: Mapping[str, float], digest: str = "", errors: Mapping[str, float] | None = None
    ) -> "Calibration":
        """Return the calibration with some values, and their errors, in place of its own."""
        same = (name for name in self.errors if values.get(name, self.values[name]) == self.values[name])
        kept = {name: self.errors[name] for name in same}
        found = {**self.values, **values}
        return replace(self, values=found, digest=digest or self.digest, errors={**kept, **(errors or {})})

    def check_trainer(self, trainer: str) -> None:
        """Refuse to price one trainer by constants of another.

        Raises
        ------
        UsageError
            When they were fitted on jobs of another trainer alone.
        """
        if self.trainer not in (ANY, trainer.partition("-")[0]):
            raise UsageError(
                f"the calibration was fitted on jobs of {self.trainer}, and this is priced as {trainer} runs it; give "
                f'--trainer {self.trainer}, fit on jobs of {trainer}, or write trainer = "{ANY}" into the file to '
                "take it for all"
            )

    def is_fitted(self, device: str, precision: str) -> bool:
        """Whether any constant of a device, or of its family, was fitted, or given."""
        return any(name in self.values for name in self._of_device(device, precision))

    def step_error(self, devices: Iterable[str], precision: str, trainer: str) -> float | None:
        """Return the mean relative error of steps that a user's own constants say, the largest; None without any."""
        told = {name for on in devices for name in self._of_device(on, precision)}
        told |= {*self._of_trainer(trainer, precision)}
        known = [error for name, error in self.errors.items() if name in told]
        return max([LEAST_ERROR, *known]) if known else None

    def step_interval(self, devices: Sequence[str], trainer: str, kind: str) -> tuple[float, float]:
        """Return between which multiples of a promised step four of five measured ones lie.

        Told by the trainer (by any, where of it alone too little is known), the standing of the devices, of which the
        widest counts, and the kind of model (`KINDS`); `UNFITTED` where no published interval holds.
        """
        found = []
        for standing in set(map(self.standing, devices)):
            keys = ((name, standing, kind) for name in (trainer.partition("-")[0], ANY))
            found.append(next((self.intervals[key] for key in keys if key in self.intervals), around(UNFITTED)))
        return min(low for low, _ in found), max(high for _, high in found)

    def standing(self, device: str) -> str:
        """Return what prices of a device rest on: ``fitted`` rows, those of its ``family``, or its ``datasheet``."""
        parts = {part for name in self.values for part in name.split(".")[1:2]}
        return "fitted" if device in parts else "family" if family_of(device) in parts else "datasheet"

    def _of_device(self, device: str, precision: str) -> Iterator[str]:
        for on in (family_of(device), device):
            yield from (rate_name(kind, on, precision) for kind in (*COMPUTE, ""))
            yield from (f"{link}.{on}" for link in LINKS)

    def _of_trainer(self, trainer: str, precision: str) -> Iterator[str]:
        """Yield the constants that are taken of a trainer."""
        kinds = ("host", "coupled", "efficiency", *(["fp8"] if precision == "fp8" else []))
        for what in (*kinds, *(f"efficiency:{term}" for term in TERMS)):
            yield from [name for name in _names(what, trainer) if name in self.values][:1]


def family_of(device: str) -> str:
    """Return which devices run the same kernels as one of the catalogue; empty where nobody knows."""
    return FAMILIES.get(device.partition("-")[0], "")


def _names(what: str, trainer: str) -> list[str]:
    """Return the constants that tell something of a trainer, the most specific first."""
    kind, _, term = what.partition(":")
    whose = [trainer, trainer.partition("-")[0], *([] if trainer == MEASURED else [ANY])]
    return [f"{kind}.{name}.{term}" if term else f"{kind}.{name}" for name in whose]


def _as_bf16(name: str) -> str:
    """Return the name of a constant in bf16: kernels of fp16 take as long."""
    return name.removesuffix("fp16") + "bf16" if name.endswith(".fp16") else name


def rate_name(kind: str, device: str, precision: str) -> str:
    """Return the name of the constant of a kind of work; under narrow precisions all but matmuls run in bf16."""
    name = COMPUTE.get(kind, "memory")
    return f"{name}.{device}.{precision if name == 'matmul' else kept_in(precision)}"


@cache
def published() -> Calibration:
    """Return the constants of `constants.toml`."""
    return _read(FILE)


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; what it does not hold is as published.

    Raises
    ------
    InvalidInput
        When it cannot be read, or holds a constant that there is not or that is out of bounds.
    """
    own = _read(path)
    return replace(published().with_values(own.values, digest_of(own.values), own.errors), trainer=own.trainer)


def around(error: float) -> tuple[float, float]:
    """Return between which multiples of a step four of five measured ones lie, by their mean relative error."""
    wide = (1 + error) ** FOUR_OF_FIVE
    return 1 / wide, wide


def to_toml(
    rows: Sequence[Mapping[str, object]], intervals: Sequence[Mapping[str, object]] = (), trainer: str = ANY
) -> str:
    """Return a calibration file of a trainer: a table for each constant and each interval, with its remarks."""
    lines = [f'format = "{FORMAT}"', f"version = {VERSION}", f'trainer = "{trainer}"']
    lines += [] if rows else ["constant = []"]
    for name, table in (("constant", rows), ("interval", intervals)):
        for row in table:
            lines += ["", f"[[{name}]]", *(f"{key} = {_written(value)}" for key, value in row.items())]
    return "\n".join(lines) + "\n"


def _written(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def digest_of(values: Mapping[str, float]) -> str:
    """SHA-256 of constants, short."""
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:16]


def _read(path: str | Path) -> Calibration:
    """Return constants, the errors of those that say theirs, and intervals."""
    more = ("trainer", "interval", "provenance", "extra")
    members = document(read_toml(path), FORMAT, VERSION, ("constant",), more)
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
    intervals: dict[tuple[str, str, str], tuple[float, float]] = {}
    for node in members["interval"].items() if "interval" in members else ():
        row = node.members(("trainer", "standing", "kind", "low", "high"), ("rows", "sources"))
        intervals[row["trainer"].text(), row["standing"].text(), row["kind"].text(KINDS)] = (
            row["low"].number(),
            row["high"].number(),
        )
    trainer = members["trainer"].text() if "trainer" in members else ANY
    return Calibration(found, errors=errors, trainer=trainer, intervals=intervals)


def _check_name(node: Node) -> None:
    """Refuse what no device, family or trainer has: it would do nothing."""
    kind, *of = node.text().split(".")
    if kind in (*RATES, *LINKS):
        shape = f"{kind}.DEVICE" + (f".PRECISION, of {', '.join(PRECISIONS)}" if kind in RATES else "")
        right = len(of) == (2 if kind in RATES else 1) and (kind in LINKS or of[1] in PRECISIONS)
    else:
        shape = f"{kind}.TRAINER" + (f", or {kind}.TRAINER.KIND, of {', '.join(TERMS)}" if kind == "efficiency" else "")
        right = len(of) == 1 or (kind == "efficiency" and len(of) == 2 and of[1] in TERMS)
    if not right:
        node.fail(f"it is called {shape}")
    if kind in (*RATES, *LINKS) and of[0] not in FAMILIES.values():
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
