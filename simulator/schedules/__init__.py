"""The catalogue of schedules: one file a schedule, one table that lists them all.

`build_schedule` makes orders of compute actions (F and B, or F, I and W) from costs. Lowering, gradient
reduction and the optimizer are added elsewhere.
"""

from costmodel.errors import UsageError
from costmodel.stages.costs import Costs
from simulator.schedule import Schedule, check_multiples, stage_graph
from simulator.schedules import (
    chimera,
    dualpipe,
    dualpipe_v,
    eager_1f1b,
    gpipe,
    graph_1f1b,
    graph_auto,
    graph_eager_1f1b,
    graph_kfkb,
    graph_zb,
    group_interleaved,
    hanayo,
    interleaved_1f1b,
    interleaved_zb,
    looped_bfs,
    one_f_one_b,
    seq1f1b,
    v_half,
    v_min,
    zb_auto,
    zb_h1,
    zb_h2,
    zb_v,
)
from simulator.schedules.kind import ClosedForm, Request, ScheduleKind, Uniform

__all__ = ["SCHEDULES", "ClosedForm", "Request", "ScheduleKind", "Uniform", "build_schedule"]

SCHEDULES: dict[str, ScheduleKind] = {
    module.KIND.name: module.KIND
    for module in (
        gpipe,
        one_f_one_b,
        eager_1f1b,
        interleaved_1f1b,
        looped_bfs,
        zb_h1,
        zb_h2,
        zb_auto,
        interleaved_zb,
        group_interleaved,
        zb_v,
        v_half,
        v_min,
        dualpipe,
        dualpipe_v,
        chimera,
        hanayo,
        seq1f1b,
        graph_1f1b,
        graph_eager_1f1b,
        graph_kfkb,
        graph_auto,
        graph_zb,
    )
}
"""Every schedule by its name."""


def build_schedule(
    name: str,
    costs: Costs,
    num_microbatches: int,
    *,
    group_size: int | None = None,
    memory_limit_bytes: int | None = None,
    objective: str = "span",
    num_slices: int = 1,
    in_flight: tuple[int, ...] = (),
    seed: int = 0,
    effort: float = 1.0,
) -> Schedule:
    """Make a schedule from the catalogue.

    Parameters
    ----------
    name : str
        A key of `SCHEDULES`.
    costs : Costs
        Where stages run and what they cost; fixed orders use the placement alone, and overlap pairs where these have
        a time of their own.
    num_microbatches : int
    group_size : int, optional
        Of `interleaved-1f1b`; the number of ranks by default.
    memory_limit_bytes : int, optional
        Bytes a rank may hold, for schedules that plan within a limit (`zb-auto`, `graph-zb`); a fixed order ignores it.
    objective : str
        ``span`` or ``step``: what a synthesis minimises.
    num_slices : int
        Slices of a sequence; schedules that take sequences whole have 1.
    in_flight : tuple of int, optional
        For each stage the actions that each of its replicas keeps in flight, where `graph-auto` is not to seek them.
    seed : int
        Of a synthesis that tries things at random (`graph-zb`, `graph-auto`).
    effort : float
        Part of its usual work that such a synthesis does; less where many schedules are compared.

    Raises
    ------
    UsageError
        For an unknown name, a placement that the schedule does not run on, or slices that it does not take.
    NoPlanFits
        When a synthesis finds no order within the limit.
    """
    if name not in SCHEDULES:
        raise UsageError(f"no schedule is called {name!r}; there are {', '.join(SCHEDULES)}")
    kind = SCHEDULES[name]
    if num_slices > 1 and not kind.sliced:
        sliced = ", ".join(other.name for other in SCHEDULES.values() if other.sliced)
        raise UsageError(f"{name} takes sequences whole, not in {num_slices} slices; {sliced} takes slices")
    graph = stage_graph(costs)
    check_multiples(graph, num_microbatches)
    request = Request(
        costs, graph, num_microbatches, group_size, memory_limit_bytes, objective, num_slices, in_flight, seed,
        effort,
    )  # fmt: skip
    orders = kind.orders(request)
    paired = frozenset(kind.overlapped(orders)) if kind.overlapped and costs.pairs else frozenset()
    return Schedule(name, graph, num_microbatches, orders, num_slices, paired)
