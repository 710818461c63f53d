"""V-shaped orders that repeat one block: for less memory than turns need.

A building block is when F, I and W of one micro-batch run on every rank if each takes one slot of time; it repeats
every six slots, so no two of a rank's six actions may share a slot modulo six (Qi et al., Pipeline parallelism
with controllable memory, NeurIPS 2024, arXiv:2405.15362, sections 3 and 4). The slots from one stage to the next
say how long activations are held, and so the peak: one slot everywhere is V-Min, three for there and back V-Half.
Squeezing (`v_shape_timing`) makes times of slots. The forwards of the warm-up may be moved ahead into idle time as
far as the peak allows.
"""

import heapq
from itertools import product

from simulator.schedules.split_progress import SplitProgress
from simulator.schedules.split_stages import Row, SplitStages

SLOTS = 6
Block = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The slots of F, I and W of each stage for the first micro-batch."""

HOPS = ((1, 1, 1, 1), (1, 1, 2, 1), (1, 2, 1, 2), (2, 1, 2, 1), (1, 3, 1, 2), (2, 2, 2, 2), (2, 3, 2, 2))
"""Slots from rank to rank: forwards down, forwards up, input gradients of the way up, and of the way down."""
TURNS = ((1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 2, 1), (1, 1, 2))
"""Slots on the last rank between its forwards, on the first before its gradient, on the last between its gradients."""


def blocks(v_shape: SplitStages) -> list[Block]:
    """Return different blocks whose repetition fits into memory."""
    found = dict.fromkeys(_starts(v_shape.num_ranks, hops, turns) for hops, turns in product(HOPS, TURNS))
    return [block for block in found if _fits(v_shape, block)]


def _fits(v_shape: SplitStages, block: Block) -> bool:
    """Whether every rank has room for what the repeated block holds, however often it is repeated."""
    top, (forward, back, weight) = v_shape.num_stages - 1, block
    for rank in range(v_shape.num_ranks):
        for slot in range(SLOTS):
            held = 0
            for stage in (rank, top - rank):
                begun, waiting, done = (max(weight) + slot - row[stage] for row in (forward, back, weight))
                whole = begun // SLOTS - (waiting - 1) // SLOTS
                held += v_shape.activation[stage][0] * whole
                held += v_shape.kept[stage][0] * ((waiting - 1) // SLOTS - (done - 1) // SLOTS)
            if held > v_shape.room[rank]:
                return False
    return True


def peak(v_shape: SplitStages, row: Row) -> int:
    """Return the most bytes of activations that an order holds."""
    held = most = 0
    for kind, stage in row:
        size, kept = v_shape.activation[stage][0], v_shape.kept[stage][0]
        held += size if kind == "F" else -kept if kind == "W" else kept - size
        if held > most:
            most = held
    return most


def _starts(p: int, hops: tuple[int, int, int, int], turns: tuple[int, int, int]) -> Block:
    """Put each action into the first slot that is free, `hops` and `turns` after the one it follows."""
    top = 2 * p - 1
    used: list[set[int]] = [set() for _ in range(p)]

    def put(stage: int, slot: int) -> int:
        taken = used[min(stage, top - stage)]
        while slot % SLOTS in taken:
            slot += 1
        taken.add(slot % SLOTS)
        return slot

    down, up, back_up, back_down = hops
    forward, back, weight = [0] * (top + 1), [0] * (top + 1), [0] * (top + 1)
    put(0, 0)
    for stage in range(1, top + 1):
        gap = down if stage < p else turns[0] if stage == p else up
        forward[stage] = put(stage, forward[stage - 1] + gap)
    back[top] = put(top, forward[top] + turns[1])
    for stage in range(top - 1, -1, -1):
        gap = back_up if stage >= p else turns[2] if stage == p - 1 else back_down
        back[stage] = put(stage, back[stage + 1] + gap)
    for stage in range(top, -1, -1):
        weight[stage] = put(stage, back[stage] + 1)
    return tuple(forward), tuple(back), tuple(weight)


def repeated(v_shape: SplitStages, block: Block) -> tuple[Row, ...]:
    """Return the orders of a block for every micro-batch."""
    rows = []
    for rank in range(v_shape.num_ranks):
        cells = [
            (row[stage] + SLOTS * index, kind, stage)
            for stage in (rank, v_shape.num_stages - 1 - rank)
            for kind, row in zip("FIW", block, strict=True)
            for index in range(v_shape.num_actions)
        ]
        rows.append([(kind, stage) for _, kind, stage in sorted(cells)])
    return tuple(rows)


def with_early_forwards(v_shape: SplitStages, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Move forwards of the warm-up ahead into idle time, on each rank as many as its memory allows."""
    most = [len(row) for row in rows]
    while True:
        early = _forwards_alone(v_shape, most)
        moved = tuple(_ahead(*pair) for pair in zip(early, rows, strict=True))
        over = [rank for rank, row in enumerate(moved) if peak(v_shape, row) > v_shape.room[rank]]
        if not over:
            return moved
        for rank in over:
            most[rank] = len(early[rank]) - 1


def _ahead(early: Row, row: Row) -> Row:
    """Put some actions of an order first."""
    done: dict[tuple[str, int], int] = {}
    for action in early:
        done[action] = done.get(action, 0) + 1
    order = list(early)
    for action in row:
        if done.get(action, 0):
            done[action] -= 1
        else:
            order.append(action)
    return order


def _forwards_alone(v_shape: SplitStages, most: list[int]) -> tuple[Row, ...]:
    """Run forwards alone, those of the way up first, until the first gradient reaches each rank."""
    p, top, time, state = v_shape.num_ranks, v_shape.num_stages - 1, v_shape.time, SplitProgress(v_shape)
    delay = [incoming[0][1] for incoming in v_shape.sources[1:]]
    stop = [sum(map(v_shape.work_ns, range(top + 1)))] * p
    wakes = [(0, rank) for rank in range(p)]
    while wakes:
        at, rank = heapq.heappop(wakes)
        if at < state.now[rank]:
            continue
        for stage in (top - rank, rank):
            index, arrival = len(state.ends["F"][stage]), state.arrival("F", stage)
            if index == v_shape.num_actions or arrival is None:
                continue
            if arrival > at:
                heapq.heappush(wakes, (arrival, rank))
                continue
            end = at + time["F"][stage][0]
            if len(state.rows[rank]) >= most[rank] or end > stop[rank] or _is_full(state, stage):
                continue
            state.run("F", stage, at)
            if stage < top:
                reader = v_shape.rank[stage + 1]
                heapq.heappush(wakes, (max(end + delay[stage], state.now[reader]), reader))
            elif index == 0:
                for other in range(p):
                    stop[other] = end
                    end += time["I"][top - other][0] + delay[top - other - 1]
            heapq.heappush(wakes, (state.now[rank], rank))
            break
    return state.rows


def _is_full(state: SplitProgress, stage: int) -> bool:
    """Whether a forward has no room, or on the way down would take what the first one of the way up needs."""
    v_shape, rank = state.line, state.line.rank[stage]
    other = v_shape.num_stages - 1 - stage
    needed = v_shape.activation[stage][0]
    if stage < v_shape.num_ranks and not state.ends["F"][other]:
        needed += v_shape.activation[other][0]
    return state.held[rank] + needed > v_shape.room[rank]
