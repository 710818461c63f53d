"""How much work a search may do: a clock, a count of the solver's own work, the seed, and what is too much for any."""

from dataclasses import dataclass

from costmodel import limits
from costmodel.errors import UsageError


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of a search.

    Attributes
    ----------
    time_limit_s : float
        Wall clock of the whole command, after which it returns what it has; 0 keeps the first heuristic plan.
    deterministic_limit : float, optional
        Work limit of the solver, in its own deterministic seconds: what it finds then does not depend on the machine,
        and the clock ends the search only as a backstop; with 0 it is not started.
    seed : int
    spent_s : float
        Seconds of the time limit that were gone before the search began.
    """

    time_limit_s: float = 10.0
    deterministic_limit: float | None = None
    seed: int = 0
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        if self.time_limit_s < 0 or (self.deterministic_limit is not None and self.deterministic_limit < 0):
            raise UsageError("a time limit is below 0; 0 keeps the heuristic plan alone")


def check_reach(num_devices: int, global_batch: int, microbatch_size: int) -> None:
    """Refuse more than a search can look at, before any of it is made.

    Raises
    ------
    UsageError
        For too many devices, or a batch that makes too many actions even in micro-batches of this size.
    """
    limits.check("devices", num_devices, "--devices")
    limits.check("batch", global_batch, "--batch")
    actions = 2 * (global_batch // max(1, microbatch_size))
    limits.check("actions", actions, f"a batch of {global_batch} in micro-batches of {microbatch_size} at most")
