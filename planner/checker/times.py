"""When everything happens, worked out a second time, the plain way.

Every action starts when the one before it on its rank has ended and what it needs has arrived; a message
is a delay of its edge's `p2p_ns`, 0 within a rank. B takes I + W. A stage with a recompute time spends it in
I or B, unless the orders hold its R. REDUCE overlaps compute once all ranks of its stage have issued it, one
after the other on each rank; OPT waits for the REDUCE of its stage. A rank of speed s takes round(time / s),
halves up. Leaves out other modes of transfer and of the optimizer: a plan's prediction is made in this one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from costmodel.stages.costs import Costs, at
from planner.checker.orders import Key
from planner.checker.steps import COMPUTE, Layout, Step

Orders = Sequence[Sequence[Step]]


@dataclass(frozen=True, slots=True)
class CheckedTimes:
    """Start and end of compute actions by kind, stage and micro-batch, and of what closes each rank's step."""

    compute: Mapping[Key, tuple[int, int]]
    closing: Mapping[tuple[int, str, int], tuple[int, int]]
    """By rank, kind and stage."""

    def of(self, step: Step) -> tuple[int, int]:
        """Start and end of a step."""
        if step.kind in COMPUTE:
            return self.compute[step.kind, step.stage, step.microbatch]
        return self.closing[step.rank, step.kind, step.stage]

    @property
    def step_time_ns(self) -> int:
        """First start to last end."""
        spans = [*self.compute.values(), *self.closing.values()]
        return max(end for _, end in spans) - min(start for start, _ in spans)


def times_of(layout: Layout, orders: Orders, costs: Costs, speeds: Sequence[float]) -> CheckedTimes:
    """Return when everything happens in legal orders."""
    compute = _compute_times(layout, orders, costs, speeds)
    closing = _reductions(layout, orders, costs, compute)
    for rank, order in enumerate(orders):
        free = max((compute[_key(s)][1] for s in order if s.kind in COMPUTE), default=0)
        for step in (s for s in order if s.kind == "OPT"):
            start = max(free, closing.get((rank, "REDUCE", step.stage), (0, 0))[1])
            free = start + _on_rank(costs.stages[step.stage].optimizer_ns, speeds[rank])
            closing[rank, "OPT", step.stage] = (start, free)
    return CheckedTimes(compute, closing)


def needs_of(layout: Layout, key: Key, present: Mapping[Key, object]) -> Iterator[tuple[Key, tuple[int, int] | None]]:
    """Yield the results that an action needs, each with the edge it comes over (None within the stage)."""
    kind, stage, first = key
    if kind == "F":
        for source in layout.sources[stage]:
            yield from ((("F", source, k), (source, stage)) for k in _meeting(layout, stage, first, source))
        return
    if kind == "W":
        yield ("I", stage, first), None
        return
    yield ("F", stage, first), None
    if kind == "R":
        return
    if ("R", stage, first) in present:
        yield ("R", stage, first), None
    for target in layout.gradient_sources[stage]:
        for k in _meeting(layout, stage, first, target):
            yield ("I" if ("I", target, k) in present else "B", target, k), (stage, target)


def _meeting(layout: Layout, stage: int, first: int, other: int) -> Iterator[int]:
    """Yield the groups of another stage that share a micro-batch with a group of `stage`."""
    stop = first + layout.multiples[stage]
    size = layout.multiples[other]
    yield from range(first // size * size, stop, size)


def _compute_times(layout: Layout, orders: Orders, costs: Costs, speeds: Sequence[float]) -> dict[Key, tuple[int, int]]:
    """Go round the ranks and run whatever can run, until all has run."""
    queues = [[_key(step) for step in order if step.kind in COMPUTE] for order in orders]
    present = dict.fromkeys(key for queue in queues for key in queue)
    delay = {(e.source, e.target): e.p2p_ns for e in costs.edges}
    done: dict[Key, tuple[int, int]] = {}
    at_position, free = [0] * len(queues), [0] * len(queues)
    waiting: dict[Key, list[int]] = {}
    awake = list(range(len(queues)))
    while awake:
        rank = awake.pop()
        while at_position[rank] < len(queues[rank]):
            key = queues[rank][at_position[rank]]
            needs = list(needs_of(layout, key, present))
            missing = next((need for need, _ in needs if need not in done), None)
            if missing:
                waiting.setdefault(missing, []).append(rank)
                break
            arrivals = [
                done[need][1] + (delay[edge] if edge and layout.rank_of(*need[1:]) != rank else 0)
                for need, edge in needs
            ]
            start = max([free[rank], *arrivals])
            free[rank] = start + _on_rank(_duration(costs, layout, key, present), speeds[rank])
            done[key] = (start, free[rank])
            at_position[rank] += 1
            awake.extend(waiting.pop(key, ()))
    return done


def _duration(costs: Costs, layout: Layout, key: Key, present: Mapping[Key, object]) -> int:
    kind, stage, first = key
    cost, group = costs.stages[stage], first // layout.multiples[stage]
    if kind in ("F", "W", "R"):
        return at({"F": cost.forward_ns, "W": cost.backward_weight_ns, "R": cost.recompute_ns}[kind], group)
    again = 0 if ("R", stage, first) in present else at(cost.recompute_ns, group)
    weight = at(cost.backward_weight_ns, group) if kind == "B" else 0
    return at(cost.backward_input_ns, group) + weight + again


def _on_rank(time_ns: int, speed: float) -> int:
    return time_ns if speed == 1 else int(time_ns / speed + 0.5)


def _reductions(
    layout: Layout, orders: Orders, costs: Costs, compute: Mapping[Key, tuple[int, int]]
) -> dict[tuple[int, str, int], tuple[int, int]]:
    """Time reductions, each when the last of its ranks has issued it and ended the one before."""
    issued: dict[int, dict[int, int]] = {}
    queues: list[list[int]] = []
    for rank, order in enumerate(orders):
        now, queue = 0, []
        for step in order:
            if step.kind in COMPUTE:
                now = compute[_key(step)][1]
            elif step.kind == "REDUCE":
                queue.append(step.stage)
                issued.setdefault(step.stage, {})[rank] = now
        queues.append(queue)
    free = [0] * len(orders)
    found: dict[tuple[int, str, int], tuple[int, int]] = {}
    while any(queues):
        stage = next(s for s in issued if all(queues[rank][:1] == [s] for rank in issued[s]))
        start = max(max(now, free[rank]) for rank, now in issued[stage].items())
        for rank in issued[stage]:
            free[rank] = start + costs.stages[stage].reduce_ns
            found[rank, "REDUCE", stage] = (start, free[rank])
            queues[rank].pop(0)
    return found


def _key(step: Step) -> Key:
    return step.kind, step.stage, step.microbatch
