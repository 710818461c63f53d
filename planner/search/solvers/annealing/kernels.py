"""Random changes of a cut that make its step shorter, compiled: simulated annealing at microseconds a cut.

A cut is valued by a closed form, the longest path there and back of a stage and all of its work, or by a simulation of
1F1B with so many micro-batches in flight. Stages are numbered so that data flows to higher numbers only; an atom moves
with all that this drags along, so that every cut met is one that can be run (Kirkpatrick, Gelatt and Vecchi,
Optimization by simulated annealing, Science 220, 1983). All in one module, for compiled code is kept until its own
file changes. Leaves out contention, storages that stages share, uneven micro-batches, and where to start.
"""

from math import ceil, log

import numpy as np

from planner.search.solvers.annealing.data import Cut, Dice, Ints, Loads, Room, room_for
from planner.search.solvers.compiled import compiled, inlined

FORWARD, BACKWARD, CLOSING, STATIC, KEPT = range(5)
"""Columns of `works`: F and B of one micro-batch and what ends a step, in ns; bytes held once and for each micro-batch
in flight."""
PRODUCER, FIRST_READER, GRADIENT = range(3)
"""Columns of `flows`: the atom that makes a tensor, where its readers begin, and whether a gradient comes back."""
AFTER, BEFORE = range(2)
"""Rows of `first`: atoms that read an atom's outputs, and atoms whose outputs it reads."""
DELAY, BYTE = range(2)
"""Tables of `links`: time of an empty message between two stages, and of each byte, in ns."""
SPEED, LIMIT = range(2)
"""Rows of `places`: speed and memory limit of the place where a stage runs."""
THERE, BACK = range(2)
"""Tables of `edges_ns`: time of the outputs that a stage gets from another, and of the gradients."""
COUNT, IN_FLIGHT, DONE, SEEN, SOURCES = 0, 1, 2, 4, 5
"""Rows of `numbers`: atoms of a stage, micro-batches in flight, F and B that are done (two), the flow seen last, and
how many `sources` there are of outputs and of gradients (two)."""

DEPTH, DELAYED, LINE, TWICE, ALL, FREE = range(6)
"""Micro-batches in flight, in the order of `RULES`: the longest path to a sink, with more for slow edges, the stages
from this one on, twice those, or all; and behind these any number, which stands behind the atoms' stages."""

PENALTY = 4.0
"""By how much more of itself a cut counts for being over a memory limit once."""
NEVER = 1e30
HALF, RELABEL, SWAP, NEXT, FLIGHT = 0.5, 0.1, 0.4, 0.6, 0.2
"""Half of the steps go up; up to which part changes swap two neighbours' numbers, swap the stages of two atoms, and
move an atom to the next stage; and which part changes the micro-batches in flight, where they are open."""


@inlined
def _load(cut: Cut, stage: Ints, at: Loads) -> None:
    """Add up what each stage takes, then what flows between stages."""
    for s in range(len(at.free_ns)):
        at.numbers[COUNT, s], at.numbers[SEEN, s] = 0, -1
        for column in range(5):
            at.works[s, column] = 0.0
        for way in range(2):
            for i in range(at.numbers[SOURCES + way, s]):
                at.edges_ns[way, s, at.sources[way, s, i]] = -1.0
            at.numbers[SOURCES + way, s] = 0
    for atom in range(len(cut.works)):
        s = stage[atom]
        at.numbers[COUNT, s] += 1
        for column in range(5):
            at.works[s, column] += cut.works[atom, column]
    for s in range(len(at.free_ns)):
        for column in range(STATIC):
            at.works[s, column] /= cut.places[SPEED, s]
    for flow in range(len(cut.sizes)):
        source = stage[cut.flows[flow, PRODUCER]]
        for i in range(cut.flows[flow, FIRST_READER], cut.flows[flow + 1, FIRST_READER]):
            target = stage[cut.readers[i]]
            while target != source and at.numbers[SEEN, target] != flow:
                at.numbers[SEEN, target] = flow
                before = target - 1 if cut.line else source
                while at.numbers[COUNT, before] == 0:
                    before -= 1  # a stage without atoms is none, and a line goes on behind it
                _flow(cut, at, flow, before, target)
                target = before


@inlined
def _flow(cut: Cut, at: Loads, flow: int, source: int, target: int) -> None:
    """Let a tensor flow from one stage to another."""
    if at.edges_ns[THERE, target, source] < 0:
        at.edges_ns[THERE, target, source] = cut.links[DELAY, source, target]
        _join(at, THERE, target, source)
        for column in range(CLOSING):
            at.works[source, column] += cut.host_ns
            at.works[target, column] += cut.host_ns
    at.edges_ns[THERE, target, source] += cut.sizes[flow] * cut.links[BYTE, source, target]
    if at.edges_ns[BACK, source, target] < 0 and cut.flows[flow, GRADIENT]:
        _join(at, BACK, source, target)
        at.edges_ns[BACK, source, target] = 0.0
    if at.edges_ns[BACK, source, target] >= 0:
        at.edges_ns[BACK, source, target] = at.edges_ns[THERE, target, source]


@inlined
def _join(at: Loads, way: int, stage: int, source: int) -> None:
    """Note that a stage gets something from another."""
    at.sources[way, stage, at.numbers[SOURCES + way, stage]] = source
    at.numbers[SOURCES + way, stage] += 1


@inlined
def _shared(cut: Cut, at: Loads) -> float:
    """Return the work of the busiest place, where several stages share one."""
    worst, places = 0.0, len(cut.orders)
    for place in range(places):
        work = 0.0
        for s in range(place, len(at.free_ns), places):
            work += cut.num_microbatches * (at.works[s, FORWARD] + at.works[s, BACKWARD]) + at.works[s, CLOSING]
        worst = max(worst, work)
    return worst * (1 + PENALTY * _over(cut, at))


@inlined
def _over(cut: Cut, at: Loads) -> float:
    """Return by what part the worst place that several stages share is over its memory limit."""
    over, places = 0.0, len(cut.orders)
    for place in range(places):
        most = 0.0
        for time in range(cut.alive.shape[1]):
            held = 0.0
            for i in range(cut.alive.shape[2]):
                s = place + i * places
                held += at.works[s, STATIC] + cut.alive[place, time, i] * at.works[s, KEPT]
            most = max(most, held)
        over = max(over, most / cut.places[LIMIT, place] - 1)
    return over


@inlined
def _closed(cut: Cut, at: Loads) -> float:
    """Return the largest of the stages' own work with the longest way there, then the one back or what ends a step.

    Where backwards are split nothing has to come back.
    """
    worst = 0.0
    if len(cut.orders):
        return _shared(cut, at)
    there, both = at.ends_ns[THERE], at.ends_ns[BACK]  # of the first micro-batch
    for s in range(len(at.free_ns)):
        there[s, 0] = both[s, 0] = 0.0
        for i in range(at.numbers[SOURCES + THERE, s]):
            p = at.sources[THERE, s, i]
            way = at.edges_ns[THERE, s, p]
            there[s, 0] = max(there[s, 0], there[p, 0] + at.works[p, FORWARD] + way)
            both[s, 0] = max(both[s, 0], both[p, 0] + at.works[p, FORWARD] + at.works[p, BACKWARD] + 2 * way)
        own = cut.num_microbatches * (at.works[s, FORWARD] + at.works[s, BACKWARD])
        step = own + there[s, 0] + at.works[s, CLOSING]
        if not cut.halved:  # else W may be the last of a step
            step = max(step, own + both[s, 0])
        over = (at.works[s, STATIC] + at.works[s, KEPT]) / cut.places[LIMIT, s] - 1
        worst = max(worst, step * (1 + PENALTY * max(0.0, over)))
    return worst


@compiled
def _warm_up(cut: Cut, stage: Ints, at: Loads, rule: int, busiest_ns: float) -> float:
    """Set how many micro-batches each stage keeps in flight; return by what part the worst is over its memory limit."""
    stages, after, over = len(at.free_ns), 0, 0.0
    for s in range(stages - 1, -1, -1):
        kept = cut.num_microbatches if rule == ALL else 1
        if rule == FREE:
            kept = max(1, stage[len(cut.works) + s])
        if rule in (LINE, TWICE):
            kept = after * (2 if rule == TWICE else 1) + 1
            after += 1 if at.numbers[COUNT, s] else 0
        elif rule != ALL:
            for q in range(s + 1, stages):
                way = at.edges_ns[THERE, q, s]
                if way >= 0:
                    more = ceil(2 * way / busiest_ns) if rule == DELAYED else 0
                    kept = max(kept, at.numbers[IN_FLIGHT, q] + 1 + more)
        at.numbers[IN_FLIGHT, s] = kept
        held = at.works[s, STATIC] + at.works[s, KEPT] * min(kept, cut.num_microbatches)
        over = max(over, held / cut.places[LIMIT, s] - 1)
    return over


@inlined
def _begin(at: Loads, way: int, stage: int, microbatch: int, free_ns: float) -> float:
    """Return when F or B of a micro-batch may begin at a stage, or `NEVER` while some of its data was not made."""
    begin = free_ns
    for i in range(at.numbers[SOURCES + way, stage]):
        other = at.sources[way, stage, i]
        if at.numbers[DONE + way, other] <= microbatch:
            return NEVER
        begin = max(begin, at.ends_ns[way, other, microbatch] + at.edges_ns[way, stage, other])
    return begin


@compiled
def _one_f_one_b(cut: Cut, at: Loads) -> float:
    """Run each stage's order, F while fewer than its number are in flight, else B; return the end of the step."""
    stages, count = len(at.free_ns), cut.num_simulated
    left = 0
    for s in range(stages):
        at.free_ns[s] = 0.0
        at.numbers[DONE + THERE, s] = at.numbers[DONE + BACK, s] = 0 if at.numbers[COUNT, s] else count
        left += 2 * (count - at.numbers[DONE, s])
    while left > 0:
        before = left
        for s in range(stages):
            while at.numbers[DONE + BACK, s] < count:
                f, b = at.numbers[DONE + THERE, s], at.numbers[DONE + BACK, s]
                way = THERE if f < count and f - b < at.numbers[IN_FLIGHT, s] else BACK
                microbatch = at.numbers[DONE + way, s]
                begin = _begin(at, way, s, microbatch, at.free_ns[s])
                if begin >= NEVER:
                    break
                at.free_ns[s] = at.ends_ns[way, s, microbatch] = begin + at.works[s, way]
                at.numbers[DONE + way, s] += 1
                left -= 1
        if left == before:
            return NEVER
    end = 0.0
    for s in range(stages):
        end = max(end, at.free_ns[s] + at.works[s, CLOSING])
    return end


@compiled
def _in_order(cut: Cut, at: Loads) -> float:
    """Run each place's order of its stages' actions; return the end of the step."""
    places, actions = cut.orders.shape[:2]
    for s in range(len(at.free_ns)):
        at.free_ns[s] = 0.0
        at.numbers[DONE + THERE, s] = at.numbers[DONE + BACK, s] = at.numbers[SEEN, s] = 0
    left = places * actions
    while left > 0:
        before = left
        for place in range(places):
            while at.numbers[SEEN, place] < actions:
                turn = at.numbers[SEEN, place]
                s, way, microbatch = cut.orders[place, turn, 0], cut.orders[place, turn, 1], cut.orders[place, turn, 2]
                begin = _begin(at, way, s, microbatch, at.free_ns[place])
                if begin >= NEVER:
                    break
                at.free_ns[place] = at.ends_ns[way, s, microbatch] = begin + at.works[s, way]
                at.numbers[DONE + way, s] += 1
                at.numbers[SEEN, place] += 1
                left -= 1
        if left == before:
            return NEVER
    for s in range(len(at.free_ns)):
        at.free_ns[s % places] += at.works[s, CLOSING]
    end = 0.0
    for place in range(places):
        end = max(end, at.free_ns[place])
    return end


@compiled
def _simulated(cut: Cut, stage: Ints, at: Loads) -> float:
    """Return the shortest step under any of the warm-ups; the more it counts the more bytes are over a limit."""
    if len(cut.orders):
        return _in_order(cut, at) * (1 + PENALTY * _over(cut, at))
    busiest_ns, best = 0.0, NEVER
    for s in range(len(at.free_ns)):
        busiest_ns = max(busiest_ns, at.works[s, FORWARD] + at.works[s, BACKWARD])
    rest_ns = (cut.num_microbatches - cut.num_simulated) * busiest_ns
    for i in range(len(cut.warmups)):
        over = _warm_up(cut, stage, at, cut.warmups[i], busiest_ns)
        best = min(best, (_one_f_one_b(cut, at) + rest_ns) * (1 + PENALTY * over))
    return best


@compiled
def value_of(cut: Cut, stage: Ints, at: Loads, simulated: bool, most_ns: float) -> float:
    """Return a cut's value in ns, simulated or by the closed form; `NEVER` where a stage may not be empty.

    What the closed form, which simulation hardly undercuts, has above `most_ns` is not simulated.
    """
    _load(cut, stage, at)
    for s in range(len(at.free_ns)):
        if cut.full and at.numbers[COUNT, s] == 0:
            return NEVER
    closed = _closed(cut, at)
    return _simulated(cut, stage, at) if simulated and closed <= most_ns else closed


@inlined
def _draw(dice: Dice) -> float:
    """Return a random number from 0 to 1 (xorshift: Marsaglia, Journal of Statistical Software 8(14), 2003)."""
    state = dice[0]
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    dice[0] = state
    return float(state >> np.uint64(11)) / 9007199254740992.0  # its highest 53 bits


@inlined
def _copy(source: Ints, target: Ints) -> None:
    for i in range(len(source)):
        target[i] = source[i]


@compiled
def _push(cut: Cut, stage: Ints, atom: int, target: int, stack: Ints) -> None:
    """Move an atom, and what it drags along: all that it leads to up to there, or that leads to it from there on."""
    up = target > stage[atom]
    side = AFTER if up else BEFORE
    stage[atom] = target
    stack[0] = atom
    top = 1
    while top > 0:
        top -= 1
        moved = stack[top]
        for i in range(cut.first[side, moved], cut.first[side, moved + 1]):
            other = cut.neighbours[i]
            if (stage[other] < target) if up else (stage[other] > target):
                stage[other] = target
                stack[top] = other
                top += 1


@compiled
def _change(cut: Cut, stage: Ints, at: Loads, stack: Ints, dice: Dice) -> bool:
    """Change a cut at random; return False where nothing came of it."""
    stages, atoms = len(at.free_ns), len(cut.works)
    if len(cut.warmups) and cut.warmups[0] == FREE and _draw(dice) < FLIGHT:
        more = 1 if _draw(dice) < HALF else 2
        s = atoms + int(_draw(dice) * stages)
        stage[s] = max(1, stage[s] + (more if _draw(dice) < HALF else -more))
        return True
    kind = _draw(dice)
    if kind < RELABEL:
        s = int(_draw(dice) * (stages - 1))
        for atom in range(atoms):
            if stage[atom] == s:
                stage[atom] = s + 1
            elif stage[atom] == s + 1:
                stage[atom] = s
        return bool(at.edges_ns[THERE, s + 1, s] < 0)
    atom = int(_draw(dice) * atoms)
    target = int(_draw(dice) * stages)
    if kind < SWAP:
        other = int(_draw(dice) * atoms)
        own, target = stage[atom], stage[other]
        if own == target:
            return False
        _push(cut, stage, atom, target, stack)
        _push(cut, stage, other, own, stack)
        return True
    if kind < NEXT:
        target = stage[atom] + (1 if _draw(dice) < HALF else -1)
    if target < 0 or target >= stages or target == stage[atom]:
        return False
    _push(cut, stage, atom, target, stack)
    return True


@compiled
def anneal(cut: Cut, room: Room, num_moves: int, hot: float, cooling: float, simulated: bool) -> float:
    """Room from `room.stage` by so many changes; the best cut is left in `room.best`, its value returned."""
    at, valued = room.at, room.valued
    now = value_of(cut, room.stage, at, simulated, NEVER)
    _copy(room.stage, room.best)
    least, temperature = now, hot * now
    for _ in range(num_moves):
        temperature *= cooling
        _copy(room.stage, room.trial)
        if not _change(cut, room.trial, at, room.stack, room.dice):
            continue
        most = now - temperature * log(1 - _draw(room.dice))
        value = value_of(cut, room.trial, valued, simulated, most)
        if value <= most:
            _copy(room.trial, room.stage)
            at, valued = valued, at
            now = value
            if value < least:
                least = value
                _copy(room.trial, room.best)
    return least


def compile_all() -> None:
    """Run on next to nothing, so that numba keeps what it compiles."""
    nothing, square, first = np.zeros(0), np.zeros((2, 2, 2)), np.zeros((2, 3), np.int64)
    places, ints = np.ones((2, 2)), np.zeros(0, np.int64)
    flows, works = np.zeros((1, 3), np.int64), np.ones((2, 5))
    orders = alive = np.zeros((0, 0, 3), np.int64)
    warmups = np.array([0])
    cut = Cut(
        works, flows, nothing, ints, ints, first, square, places, warmups, orders, alive, 0.0, 1, 1, False, False, False
    )  # fmt: skip
    anneal(cut, room_for(cut, np.array([0, 1, 1, 1]), 0), 1, 0.1, 0.1, True)
