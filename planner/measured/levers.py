"""Which constants move which terms of a job's price: kernels by family and device, links, and the trainer's own.

A published fit moves constants in levels, each shrunk to the one above it: a family of devices, a device within its
family; any trainer, one trainer, a version of it. A user's fit moves those of the user's own device and trainer from
where they are known. Leaves out how far rows move them (`planner.measured.fit_constants`).
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from math import prod

from costmodel.calibration import ANY, Calibration, family_of, rate_name
from planner.measured.job import MeasuredJob

TERMS = ("matmul", "grouped", "attention", "memory", "scaleup", "network", "host")
"""Terms of a price, as `planner.measured.terms` has them."""
DEVICE_TERMS = TERMS[:4]
OF_TRAINERS = ("efficiency", "fp8", "host", "unfused")
"""Kinds of constants that a trainer has; the others are a device's."""
LEVELS = (
    ("efficiency.any.*", 0.3), ("efficiency.any", 1.0), ("efficiency.*-*", 0.2), ("efficiency.*", 0.1),
    ("fp8.*", 0.3), ("unfused.*", 0.3), ("host.any", 0.4), ("host.*-*", 0.3), ("host.*", 0.2),
    ("scaleup.*", 0.08), ("network.*", 0.1), ("*", 0.12),
)  # fmt: skip
"""How far constants of a published fit lie from the level above, by patterns of their names: standard deviations in
logarithms, chosen by leaving sources out."""
OWN = (
    ("efficiency.*", 0.4), ("host.*", 0.5), ("network.*", 0.3), ("scaleup.*", 0.2), ("fp8.*", 0.2), ("unfused.*", 0.3),
    ("*", 0.25),
)  # fmt: skip
"""The same of a user's fit."""
Levers = Mapping[str, tuple[str, ...]]


def spread(name: str, table: Iterable[tuple[str, float]]) -> float:
    """Return the standard deviation of a constant, by the first pattern that its name matches."""
    return next(value for pattern, value in table if fnmatchcase(name, pattern))


def is_of_version(name: str) -> bool:
    """Whether a constant is of one version of a trainer (``host.megatron-2022``)."""
    kind, who, *_ = name.split(".")
    return kind in OF_TRAINERS and "-" in who


def levels(job: MeasuredJob) -> Levers:
    """Return the constants of a published fit that multiply each term of a job."""
    trainer, family = _levels(job.trainer), family_of(job.device)
    efficiency = tuple(f"efficiency.{name}" for name in trainer)
    fp8 = tuple(f"fp8.{name}" for name in trainer) if job.precision == "fp8" else ()
    unfused = (f"unfused.{ANY}",) if dict(job.habits).get("fused") is False else ()
    routed = (f"efficiency.{ANY}.routed",) if job.routes else ()
    found = {}
    for term in DEVICE_TERMS:
        rates = tuple(rate_name(KIND.get(term, term), on, _width(job.precision)) for on in (family, job.device))
        own = (f"efficiency.{job.trainer}.{term}",) if "-" in job.trainer and term != "grouped" else ()
        found[term] = (*efficiency, *own, *rates)
    found["matmul"] += fp8
    found["grouped"] += (*fp8, f"efficiency.{ANY}.grouped")
    found["memory"] += (*unfused, *routed)
    found |= {link: (f"{link}.{family}", f"{link}.{job.device}") for link in TERMS[4:6]}
    return {**found, "host": tuple(f"host.{name}" for name in trainer)}


KIND = {"grouped": "matmul", "memory": ""}


def own(job: MeasuredJob) -> Levers:
    """Return the constants of a user's fit that multiply each term of a job: the device's and the trainer's own."""
    found: dict[str, tuple[str, ...]] = {
        term: (f"efficiency.{job.trainer}", rate_name(KIND.get(term, term), job.device, job.precision))
        for term in DEVICE_TERMS
    }
    for term in ("matmul", "grouped") if job.precision == "fp8" else ():
        found[term] += (f"fp8.{job.trainer}",)
    if dict(job.habits).get("fused") is False:
        found["memory"] += (f"unfused.{job.trainer}",)
    links = {link: (f"{link}.{job.device}",) for link in TERMS[4:6]}
    return {**found, **links, "host": (f"host.{job.trainer}",)}


def of_levels(moves: Mapping[str, float], known: Calibration) -> dict[str, float]:
    """Return the constants of a published fit, given the factors of its levels.

    Those of a trainer are told whole: its own level times all above it, since a reader takes the most specific alone.
    """
    found = {}
    for name, factor in moves.items():
        kind, who, *term = name.split(".")
        if kind in OF_TRAINERS and not term:
            factor = known.of_trainer(kind, ANY) * prod(moves.get(f"{kind}.{one}", 1.0) for one in _levels(who))
        found[name] = factor
    return found


def _levels(trainer: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((ANY, trainer.partition("-")[0], trainer)))


def _width(precision: str) -> str:
    """Return the precision that constants are named by: kernels of fp16 take as long as those of bf16."""
    return "bf16" if precision == "fp16" else precision
