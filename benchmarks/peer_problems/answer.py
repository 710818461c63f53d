"""What a solver of a peer's problem answers."""

from dataclasses import dataclass

OPTIMAL, BOUNDED, HEURISTIC, INFEASIBLE = "optimal", "bounded", "heuristic", "infeasible"
PROVED = 1e-9
"""Relative distance of a bound below which a partition counts as optimal: less than rounding moves either."""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A partition with its objective and a proved bound, in the unit of the peer.

    Attributes
    ----------
    objective : float or None
        None where nothing was found.
    lower_bound : float
    status : str
        ``optimal``; ``bounded``: a bound below it is proved; ``heuristic``: no bound but 0; ``infeasible``: proved.
    stages : tuple of dict
        For each stage its nodes, by place in the instance, and what was decided for it.
    why : str
        Where nothing fits, or not everything was tried: what stands in the way.
    interrupted : bool
        Whether Ctrl-C or SIGTERM ended the search.
    """

    objective: float | None
    lower_bound: float
    status: str
    stages: tuple[dict[str, object], ...]
    why: str = ""
    interrupted: bool = False


def status_of(objective: float, lower_bound: float) -> str:
    """Return what a bound proves of an objective."""
    if lower_bound >= objective * (1 - PROVED):
        return OPTIMAL
    return BOUNDED if lower_bound > 0 else HEURISTIC
