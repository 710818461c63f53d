"""What a plan file says of its making: options of the command, what a sample is, the memory that a rank might hold."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.plan.whole import Plan


def options_of(plan: Plan) -> Mapping[str, object]:
    """Return the options that a plan was made with; none where its file does not say."""
    found = plan.provenance.get("options")
    return found if isinstance(found, dict) else {}


def number_of(found: object) -> int | None:
    """Return a whole number as a file has it; None for anything else."""
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def of_a_sample(plan: Plan, name: str) -> int:
    """Return what a plan says of a sample, its ``flop`` or ``tokens``; 0 where it does not, or beyond 2^63."""
    sample = plan.extra.get("sample")
    found = number_of(sample.get(name)) if isinstance(sample, dict) else None
    return found if found is not None and 0 < found < 2**63 else 0


@dataclass(frozen=True)
class ImportedJob:
    """What a plan that ``import job`` wrote says of it: trainer, the `convention` that prices it, and training."""

    trainer: str
    convention: str
    precision: str
    optimizer: str
    habits: Mapping[str, object]


def job_of(plan: Plan) -> ImportedJob | None:
    """Return the job that a plan was imported from; None for any other plan."""
    told = plan.extra.get("job")
    if not isinstance(told, dict):
        return None
    habits = told.get("habits")
    return ImportedJob(
        str(told.get("trainer", "")),
        plan.assumptions.trainer,
        str(told.get("precision", "")),
        plan.assumptions.optimizer or "none",
        habits if isinstance(habits, dict) else {},
    )


def memory_limit_of(plan: Plan) -> int | None:
    """Return the limit that a plan was made under in addition to its devices' own memory."""
    return number_of(options_of(plan).get("memory_limit_bytes"))


def margin_of(plan: Plan) -> int:
    """Return the bytes that were to stay free on each device."""
    return number_of(options_of(plan).get("memory_margin_bytes")) or 0


def rank_limits(plan: Plan) -> tuple[int, ...]:
    """Return the bytes that each rank may hold: its device's memory, or less where so asked; 0 for unknown."""
    asked = memory_limit_of(plan)
    devices = [plan.cluster.device_of(rank).memory_bytes for rank in range(len(plan.orders))]
    return tuple(min(filter(None, (asked, size)), default=0) for size in devices)
