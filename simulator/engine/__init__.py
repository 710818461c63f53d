"""The engine: orders, costs and delayed edges in, exact times out.

`simulate` returns a whole `Timeline`; `Structure` is for asking again and again with other costs. Every
action starts as early as the order of its rank, its data and its links allow; all times are integers.

The three ways in which a message takes time (`p2p`) rank schedules differently. `latency` is a delay
alone, as most papers assume; `blocking` lets it occupy the compute stream of both ends, which is what
measurements of eager point-to-point look like: it ranks ZB-1p above interleaved 1F1B where a measured
case does (16 ranks, 48 micro-batches) and `latency` does not; `links` serialises messages on each link.

Leaves out noise, and contention between different links.
"""

from collections.abc import Sequence

from costmodel.stages.costs import Costs
from simulator.engine.structure import Structure
from simulator.engine.times import Times
from simulator.schedule import Schedule
from simulator.timeline import Timeline

__all__ = ["Structure", "Times", "simulate"]


def simulate(
    schedule: Schedule,
    costs: Costs,
    p2p: str = "latency",
    optimizer_mode: str = "independent",
    speeds: Sequence[float] = (),
) -> Timeline:
    """Simulate one step.

    Parameters
    ----------
    schedule : Schedule
        Compute orders, with REDUCE and OPT where the step has them; or lowered ones with SEND and RECV.
    costs : Costs
        Of the stage graph that the schedule was made for.
    p2p : {"latency", "blocking", "links", "nccl"}
        What a message occupies.
    optimizer_mode : {"independent", "global-norm", "post-validated"}
        What an optimizer step waits for.
    speeds : sequence of float
        Speed factor of each rank; an action takes round(time / speed) ns, halves up. Default 1.

    Returns
    -------
    Timeline
        With spans of compute, messages and collectives, and the memory of each rank.

    Raises
    ------
    InvalidInput
        When an order waits on itself (names the blocked actions), an action occurs twice or what it needs
        is missing, or costs do not fit the schedule.
    """
    structure = Structure(schedule, p2p, optimizer_mode)
    return structure.times(costs, speeds).timeline()
