"""What synthesised schedules promise: on small stage graphs no order is shorter, on others they are legal.

The best order is found by going through all of them, with an account of its own of times and memory: partial orders
that have come equally far are dropped where another has every rank free and every result there at least as early.
Each stage's micro-batches run in turn, which costs nothing where all cost the same.
"""

import time
from fractions import Fraction
from itertools import pairwise
from random import Random

from costmodel.errors import NoPlanFits
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from planner.synthesis.polish import polished
from simulator.engine import Structure
from simulator.schedules import build_schedule
from simulator.uniform import share_bytes, uniform_costs
from simulator.validation import validate_schedule
from tests.support.published_data import folder, rows
from tests.support.random_stage_graphs import random_costs

SECONDS = 5.0
"""Of the solver, for a small stage graph."""
Progress = tuple[int, ...]
"""How many F, I (or B) and W of each stage have started, stage after stage."""


def brute_failures(num_cases: int) -> list[str]:
    """Return a line for each small stage graph whose synthesised step is not the least of all orders'."""
    return [line for seed in range(num_cases) for split in (False, True) if (line := _differs(seed, split=split))]


def _differs(seed: int, *, split: bool) -> str:
    rng = Random(seed)
    num_microbatches = rng.randint(1, 3)
    costs, name = small_costs(rng), "graph-zb" if split else "graph-auto"
    limit = rng.choice((None, rng.randint(6, 20)))
    least = best_of_all(costs, num_microbatches, limit, split=split)
    try:
        schedule = build_schedule(name, costs, num_microbatches, memory_limit_bytes=limit)
    except NoPlanFits:
        return "" if least is None else f"seed {seed}: {name} finds nothing, {least} ns is possible"
    if split:
        schedule = polished(schedule, costs, limit, SECONDS).schedule
    times = Structure(schedule).times(costs)
    if limit is not None and max(times.peak_memory_bytes) > limit:
        return f"seed {seed}: {name} needs {max(times.peak_memory_bytes)} bytes of {limit}"
    return "" if times.step_time_ns == least else f"seed {seed}: {name} {times.step_time_ns} ns, the least is {least}"


def small_costs(rng: Random) -> Costs:
    """Return up to three stages on up to three ranks, some frozen, with edges that take time."""
    num_stages = rng.randint(1, 3)
    edges = [
        EdgeCost(i, j, rng.choice((0, 0, 2)), gradient=rng.random() < 0.9)
        for j in range(num_stages)
        for i in range(j)
        if rng.random() < 0.7
    ]
    num_ranks = rng.choice((num_stages, num_stages, max(1, num_stages - 1)))
    ranks = [(stage % num_ranks,) for stage in range(num_stages)]
    frozen = num_stages > 1 and rng.random() < 0.2
    stages = [
        StageCost(rng.randint(1, 9), rng.randint(1, 9), rng.randint(0, 9), activation_bytes=(size := rng.randint(2, 6)),
                  weight_activation_bytes=rng.randint(0, size), static_bytes=rng.choice((0, 1)),
                  backward=stage > 0 or not frozen)
        for stage in range(num_stages)
    ]  # fmt: skip
    return Costs(tuple(stages), tuple(edges), tuple(ranks))


def best_of_all(costs: Costs, num_microbatches: int, limit_bytes: int | None, *, split: bool) -> int | None:
    """Return the least step of all orders; None where none fits."""
    search = _Everything(costs, num_microbatches, limit_bytes, split=split)
    return search.run()


class _Everything:
    """Goes through partial orders by how far they have come.

    A partial order's times are the ends of all actions that started (by stage, kind and micro-batch) and when each rank
    is free.
    """

    def __init__(self, costs: Costs, num_microbatches: int, limit_bytes: int | None, *, split: bool) -> None:
        self.costs, self.m, self.split = costs, num_microbatches, split
        self.limit = limit_bytes
        self.delay = {
            (e.source, e.target): e.p2p_ns if costs.ranks[e.source] != costs.ranks[e.target] else 0 for e in costs.edges
        }
        self.goal = tuple(
            num_microbatches * part
            for stage in costs.stages
            for part in (1, int(stage.backward), int(stage.backward and split))
        )

        self.readers: dict[object, list[int]] = {
            (stage, kind): [3 * stage + kind + 1] if kind < 2 and self.goal[3 * stage + kind + 1] else []
            for stage in range(len(costs.stages))
            for kind in range(3)
        }
        for source, target in self.delay:
            self.readers[source, 0].append(3 * target)
            if self._has_gradient(source, target):
                self.readers[target, 1].append(3 * source + 1)

    def run(self) -> int | None:
        layer: dict[Progress, list[dict[object, int]]] = {(0,) * len(self.goal): [{}]}
        for _ in range(sum(self.goal)):
            following: dict[Progress, list[dict[object, int]]] = {}
            for progress, found in layer.items():
                for place, most in enumerate(self.goal):
                    if progress[place] < most and self._has_room(progress, place):
                        further = (*progress[:place], progress[place] + 1, *progress[place + 1 :])
                        for times in found:
                            if (then := self._started(times, progress, place)) is not None:
                                _keep(following.setdefault(further, []), self._needed(then, further))
            layer = following
        return min((max(times.values()) for found in layer.values() for times in found), default=None)

    def _has_room(self, progress: Progress, place: int) -> bool:
        stage, kind = divmod(place, 3)
        if kind or self.limit is None:
            return True
        ranks = self.costs.ranks
        held = self.costs.stages[stage].activation_bytes
        for other, cost in enumerate(self.costs.stages):
            if ranks[other] == ranks[stage]:
                forwards, backwards, weights = progress[3 * other : 3 * other + 3]
                kept = cost.weight_activation_bytes * ((backwards - weights) if self.split else 0)
                inside = cost.activation_bytes * (forwards - backwards) if cost.backward else 0
                held += cost.static_bytes + inside + kept  # type: ignore[operator,assignment]
        return held <= self.limit  # type: ignore[operator]

    def _started(self, times: dict[object, int], progress: Progress, place: int) -> dict[object, int] | None:
        stage, kind = divmod(place, 3)
        index, cost = progress[place], self.costs.stages[stage]
        needs = [(stage, 0, index, 0)] if kind == 1 else [(stage, 1, index, 0)] if kind == 2 else []
        for (source, target), delay in self.delay.items():
            if kind == 0 and target == stage:
                needs.append((source, 0, index, delay))
            if kind == 1 and source == stage and self._has_gradient(source, target):
                needs.append((target, 1, index, delay))
        if any(progress[3 * other + sort] <= index for other, sort, _, _ in needs):
            return None
        rank = self.costs.ranks[stage][0]
        start = max([times.get(rank, 0), *(times[other, sort, k] + delay for other, sort, k, delay in needs)])
        backward_ns = cost.backward_input_ns if self.split else cost.backward_input_ns + cost.backward_weight_ns  # type: ignore[operator]
        end = start + (cost.forward_ns, backward_ns, cost.backward_weight_ns)[kind]  # type: ignore[operator]
        return times | {rank: end, (stage, kind, index): end}  # type: ignore[dict-item]

    def _has_gradient(self, source: int, target: int) -> bool:
        edge = next(e for e in self.costs.edges if (e.source, e.target) == (source, target))
        return edge.gradient and self.costs.stages[source].backward and self.costs.stages[target].backward

    def _needed(self, times: dict[object, int], progress: Progress) -> dict[object, int]:
        """Return the times that something still to start may wait for."""
        return {
            key: ns
            for key, ns in times.items()
            if isinstance(key, int) or any(progress[place] <= key[2] for place in self.readers[key[:2]])  # type: ignore[index]
        }


def _keep(found: list[dict[object, int]], times: dict[object, int]) -> None:
    """Keep times that no others are at least as early as in everything; drop those that they are."""
    if any(all(other[key] <= ns for key, ns in times.items()) for other in found):
        return
    found[:] = [other for other in found if not all(ns <= other[key] for key, ns in times.items())]
    found.append(times)


def illegal_failures(num_cases: int) -> list[str]:
    """Return a line for each random stage graph (replicas, multiples, shared ranks) whose orders are not legal."""
    return [line for seed in range(num_cases) for name in ("graph-zb", "graph-auto") if (line := _illegal(name, seed))]


def _illegal(name: str, seed: int) -> str:
    rng = Random(seed)
    num_microbatches = rng.choice((2, 6, 12))
    costs = random_costs(rng, num_microbatches)
    free = build_schedule(name, costs, num_microbatches)
    peak = max(Structure(free).times(costs).peak_memory_bytes)
    for limit in (None, max(1, rng.randint(peak // 2, peak))):
        try:
            schedule = build_schedule(name, costs, num_microbatches, memory_limit_bytes=limit)
        except NoPlanFits:
            continue
        problems = validate_schedule(schedule)
        held = max(Structure(schedule).times(costs).peak_memory_bytes)
        if problems or (limit is not None and held > limit):
            return f"seed {seed}: {name} within {limit}: {problems or held}"
    return ""


PEERS = {
    ("zb-main", "ZB-1p"): "line", ("zb-arxiv", "ZB-1.5p"): "line", ("zb-main", "ZB-2p"): "line",
    ("zb-main", "ZB-V"): "wave", ("zb-main", "V-Half"): "wave", ("zb-main", "V-Min"): "wave",
    ("torch", "InterleavedZeroBubble_v1"): "line", ("torch", "InterleavedZeroBubble_v2"): "loop",
}  # fmt: skip
"""Schedules of chains by (source, name) of the reference table, with where their stages stand."""
SEARCHED = ("ZB-V", "V-Half", "V-Min", "InterleavedZeroBubble_v2")
"""Of them those that are to be beaten in at least half of the rows with unequal times that leave a gap."""
PEER_S = 2.0


def peer_failures(num_rows: int) -> list[str]:
    """Return a line for each schedule of a chain that `graph-zb` is behind in its memory, and if it beats too few."""
    table = [r for r in rows(folder("published", "schedules_reference.csv"))
             if (r["source"], r["schedule"]) in PEERS and r["status"] == "ok"]  # fmt: skip
    Random(0).shuffle(table)
    found, beaten = [], []
    for row in table[:num_rows]:
        step, needed, peers = _against(row)
        if step > peers + 1:  # the table rounds to its printed digits
            found.append(f"{row['schedule']} p={row['p']} m={row['m']} {row['time_set']}: {step}, the peer's {peers}")
        if needed > Fraction(row["peak_half"]):
            found.append(f"{row['schedule']} p={row['p']} m={row['m']} {row['time_set']}: {needed} shares")
        if (
            row["schedule"] in SEARCHED
            and len({row["tF"], row["tB"], row["tW"]}) > 1
            and float(row["gap_makespan"]) > 0
        ):
            beaten.append(step < peers - 1)
    if 2 * sum(beaten) < len(beaten):
        found.append(f"only {sum(beaten)} of {len(beaten)} searched schedules are beaten")
    return found


def _against(row: dict[str, str]) -> tuple[int, Fraction, Fraction]:
    """Return the step and memory of `graph-zb`, and the peer's step."""
    scale, chunks = Fraction(row["scale"]) * 1000, int(float(row["v"]))
    f, i, w, c = (round(Fraction(row[key]) * scale) for key in ("tF", "tB", "tW", "c"))
    costs = uniform_costs(int(row["p"]), chunks, f, i, w, c, placement=PEERS[row["source"], row["schedule"]])
    limit = int(Fraction(row["peak_half"]) * share_bytes(chunks))
    begin = time.monotonic()
    schedule = build_schedule("graph-zb", costs, int(row["m"]), memory_limit_bytes=limit)
    schedule = polished(schedule, costs, limit, PEER_S - (time.monotonic() - begin)).schedule
    times = Structure(schedule).times(costs)
    held = Fraction(max(times.peak_memory_bytes), share_bytes(chunks))
    return times.step_time_ns, held, Fraction(row["makespan"]) * scale


CURVE = (("line", 1), ("loop", 2), ("loop", 4), ("wave", 2))
"""Placements that are open, with the stages of a rank."""
NUM_LIMITS = 10


def curve_failures(num_points: int) -> list[str]:
    """Return a line for each memory limit between V-Min's and ZB-2p's at which some peer of the table is faster.

    Eight ranks, 32 micro-batches, each set of times of the table; the best of all placements counts. Where all limits
    of a set are tried, less memory must not be faster.
    """
    table = [r for r in rows(folder("published", "schedules_reference.csv"))
             if (r["p"], r["m"], r["status"], r["bwd"]) == ("8", "32", "ok", "split")]  # fmt: skip
    sets = list(dict.fromkeys((r["time_set"], r["c"]) for r in table))
    found: list[str] = []
    for number in range(0, num_points, NUM_LIMITS):
        own = [r for r in table if (r["time_set"], r["c"]) == sets[number // NUM_LIMITS % len(sets)]]
        peaks = {r["schedule"]: Fraction(r["peak_half"]) for r in own if r["source"] == "zb-main"}
        low, high = peaks["V-Min"], peaks["ZB-2p"]
        limits = [low + (high - low) * i / (NUM_LIMITS - 1) for i in range(NUM_LIMITS)]
        steps = [_least_of_placements(own[0], limit) for limit in limits[: num_points - number]]
        for limit, step in zip(limits, steps, strict=False):
            scale = Fraction(own[0]["scale"]) * 1000
            peers = min(Fraction(r["makespan"]) * scale for r in own if Fraction(r["peak_half"]) <= limit)
            if step > peers + 1:  # the table rounds to its printed digits
                found.append(f"{own[0]['time_set']} {own[0]['c']} within {float(limit):g}: {step}, a peer {peers}")
        if any(less < more for less, more in pairwise(steps)):
            found.append(f"{own[0]['time_set']} {own[0]['c']}: more memory is slower: {steps}")
    return found


def _least_of_placements(row: dict[str, str], limit: Fraction) -> int:
    """Return the least step of `graph-zb` on stages in a line, a loop and a wave, each in `PEER_S` seconds."""
    scale, found = Fraction(row["scale"]) * 1000, []
    f, i, w, c = (round(Fraction(row[key]) * scale) for key in ("tF", "tB", "tW", "c"))
    for placement, chunks in CURVE:
        costs = uniform_costs(int(row["p"]), chunks, f, i, w, c, placement=placement)
        most = int(limit * share_bytes(chunks))
        begin = time.monotonic()
        try:
            schedule = build_schedule("graph-zb", costs, int(row["m"]), memory_limit_bytes=most)
        except NoPlanFits:
            continue
        schedule = polished(schedule, costs, most, PEER_S - (time.monotonic() - begin)).schedule
        found.append(Structure(schedule).times(costs).step_time_ns)
    return min(found)
