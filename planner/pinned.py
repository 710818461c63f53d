"""A whole plan by ``[[stage]]`` pins: stages, ranks and configurations are given, one schedule orders them.

The plan is priced, simulated, bounded and lowered like any other; nothing is searched. Stages keep the order of the
file wherever data allows. Leaves out the reading of pins (`planner.pins`).
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodel.errors import InvalidInput, NoPlanFits, UsageError
from costmodel.stages.config import StageConfig
from planner.assemble import MEMORY_MARGIN, provenance, with_targets
from planner.pins import Pins
from planner.placed import PlacedStage, flows_between, price
from planner.plan import Batch, Plan, PlanEdge, PlanStage, Prediction, SearchResult
from planner.prepare import prepare
from planner.pricing import Layout, numbered
from planner.problem import AUTO, Problem
from planner.split_form import ordered
from simulator.actions import Kind
from simulator.bounds import bound_of
from simulator.engine import Structure, Times
from simulator.lowering import close_step, lower
from simulator.schedule import Schedule, StageEdge, StageGraph

DEFAULT_SCHEDULE = "graph-1f1b"


def plan_pinned(problem: Problem, pins: Pins) -> Plan:
    """Return the plan that the pins describe.

    Parameters
    ----------
    problem : Problem
    pins : Pins
        With stages.

    Raises
    ------
    InvalidInput
        When the pinned stages do not make a plan of this model: operators, cycles, ranks, multiples.
    UsageError
        When the schedule does not run on these ranks, or flags ask for a search.
    NoPlanFits
        When a rank is over its memory limit.
    """
    if problem.planner != "ours":
        raise UsageError(f"--planner {problem.planner} cuts by itself, and [[stage]] pins give the cut; drop one")
    if problem.max_stages is not None and problem.max_stages < len(pins.stages):
        raise UsageError(f"--max-stages {problem.max_stages}, and the pins give {len(pins.stages)} stages; drop one")
    stages = _in_topological_order(problem, place(problem, pins))
    size = problem.microbatch_sizes[0]
    layout = price(problem, size, stages)
    name = DEFAULT_SCHEDULE if problem.schedule == AUTO else problem.schedule
    num_microbatches = problem.global_batch // size
    order, costs = ordered(name, layout.costs, num_microbatches, problem.cost_model(size).split_ratios)
    layout = replace(layout, costs=costs)
    recomputed = [s.config.recompute == "full" for s in stages]
    closed = close_step(with_recompute(order, recomputed), layout.reduces, problem.optimizer != "none")
    structure = Structure(closed)
    speeds = problem.speeds[: layout.costs.num_ranks]
    times = structure.times(layout.costs, speeds)
    _check_fits(problem, times)
    bound = bound_of(structure.schedule, layout.costs, speeds=speeds)
    step_ns = times.step_time_ns
    search = SearchResult("baseline", step_ns, bound.ns, bound.scope, best_step_time_ns=step_ns)
    return _assemble(problem, stages, layout, Batch(problem.global_batch, size, num_microbatches), times, search)


def place(problem: Problem, pins: Pins) -> tuple[PlacedStage, ...]:
    """Return the pinned stages in the order of the file, each with its ranks.

    Raises
    ------
    InvalidInput
        When operators or ranks do not fit the model or the devices.
    """
    graph = problem.profile.graph
    stage_of = pins.stage_of(graph)
    free = [r for r in range(problem.num_devices) if all(r not in pin.ranks for pin in pins.stages)]
    placed = []
    for stage, pin in enumerate(pins.stages):
        if not pin.ranks and not free:
            raise InvalidInput(
                f"{pin.group.place}: no ranks are given, and the {problem.num_devices} devices are all named by other "
                "stages; give ranks, or more --devices"
            )
        ranks = pin.ranks or (free.pop(0),)
        if max(ranks) >= problem.num_devices:
            raise InvalidInput(
                f"{pin.group.place}: rank {max(ranks)} is not one of the {problem.num_devices} devices, which are "
                f"numbered from 0; change ranks, or --devices"
            )
        operators = tuple(i for i, found in enumerate(stage_of) if found == stage)
        placed.append(
            PlacedStage(operators, ranks, pin.config or StageConfig(data=len(ranks)), pin.microbatch_multiple)
        )
    _check_cut(problem, pins, stage_of)
    return tuple(placed)


def _check_cut(problem: Problem, pins: Pins, stage_of: Sequence[int]) -> None:
    """Refuse stages that tear an in-place operator from its producer, or that wait on each other."""
    atoms = prepare(problem.profile.graph)
    operators = problem.profile.graph.operators
    for members in atoms.members:
        if len({stage_of[i] for i in members}) > 1:
            names = ", ".join(repr(operators[i].name) for i in members[:5])
            found = sorted({stage_of[i] for i in members})
            raise InvalidInput(
                f"{pins.stages[found[1]].group.place}: {names} change one value in place and stand in the stages "
                f"{found}; put them in one"
            )
    groups = [stage_of[members[0]] for members in atoms.members]
    if numbered(atoms, groups) is None:
        held = _in_cycle({(groups[a], groups[b]) for a, b in atoms.edges if groups[a] != groups[b]})
        raise InvalidInput(
            f"{pins.stages[held[-1]].group.place}: the stages {held} each read an output of another of them; "
            "the graph of stages must have no cycle: move operators between them"
        )


def _in_cycle(edges: set[tuple[int, int]]) -> list[int]:
    """Return the stages left when those that read from none, or feed none, are taken away again and again."""
    left = {stage for ends in edges for stage in ends}
    while True:
        inside = [(a, b) for a, b in edges if a in left and b in left]
        kept = {a for a, _ in inside} & {b for _, b in inside}
        if kept == left:
            return sorted(left)
        left = kept


def _in_topological_order(problem: Problem, stages: Sequence[PlacedStage]) -> tuple[PlacedStage, ...]:
    """Renumber stages so that data flows to higher numbers; the order of the file where that does already."""
    edges = tuple(StageEdge(*ends) for ends in flows_between(problem.profile.graph, stages))
    order = StageGraph(tuple(stage.ranks for stage in stages), edges).order
    return tuple(stages[stage] for stage in order)


def with_recompute(schedule: Schedule, recomputed: Sequence[bool]) -> Schedule:
    """Put R before each B, or I, of the stages that recompute."""
    orders = []
    for order in schedule.orders:
        found = []
        for action in order:
            if recomputed[action.stage] and action.kind in (Kind.B, Kind.I):
                found.append(replace(action, kind=Kind.R))
            found.append(action)
        orders.append(tuple(found))
    return replace(schedule, orders=tuple(orders))


def _check_fits(problem: Problem, times: Times) -> None:
    for rank, peak in enumerate(times.peak_memory_bytes):
        limit = problem.memory_limits_bytes[rank]
        if limit and peak > limit:
            raise NoPlanFits(
                f"the pinned plan peaks at {peak} bytes on rank {rank}, the limit is {limit}, {peak - limit} bytes "
                "less; recompute there, spread its stages, or allow more memory"
            )


def _assemble(
    problem: Problem, stages: Sequence[PlacedStage], layout: Layout, batch: Batch, times: Times, search: SearchResult
) -> Plan:
    graph, costs = problem.profile.graph, layout.costs
    timeline = times.timeline()
    lowered = lower(times.structure.schedule, timeline)
    peaks = times.peak_memory_bytes
    upper = tuple(peak + round(peak * MEMORY_MARGIN) for peak in peaks)
    names = [operator.name for operator in graph.operators]
    plan = Plan(
        model_name=graph.name,
        fingerprint=graph.fingerprint,
        num_operators=len(names),
        cluster=problem.machines,
        batch=batch,
        schedule=lowered.name,
        stages=tuple(
            PlanStage(tuple(names[i] for i in s.operators), s.ranks, cost, s.config, s.microbatch_multiple)
            for s, cost in zip(stages, costs.stages, strict=True)
        ),
        edges=tuple(
            PlanEdge(e.source, e.target, tuple(graph.tensors[t].name for t in row), e.size_bytes, e.p2p_ns, e.gradient)
            for e, row in zip(costs.edges, layout.tensors, strict=True)
        ),
        orders=tuple(tuple(map(str, order)) for order in lowered.orders),
        prediction=Prediction(times.step_time_ns, times.span_ns, times.bubble_ratio, peaks, upper),
        search=search,
        runs_on=(),
        provenance=provenance(problem, batch.microbatch_size),
        extra={"choice": "stages given by pins"},
    )
    return with_targets(problem, plan)
