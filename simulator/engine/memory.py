"""Memory of each rank over time, exact to the byte.

F takes its activation at its start; B frees it at its end, or I frees what only it needs and W the rest.
A forward without a backward frees it at its own end. With an R in the orders F keeps only its input (the
bytes of its edges), up to the end of R; R takes the activation at its start. With an OFFLOAD the activation is freed
when its copy to the host has ended, and taken again when RELOAD's starts. The static part stays.

A message takes its bytes on the sender from the end of its action until the transfer ends, and on the
receiver from the start of the transfer until the action that reads it has ended (or its R). It carries
its share of the edge's bytes, which are those of one action of the edge's source (rounded down); a
gradient is as large as the output. What is freed at an instant is freed before what is taken there,
except that actions on one rank follow each other strictly. A buffer that is held for no time counts nothing.

Leaves out allocator rounding, fragmentation, and the working memory inside an action.
"""

from dataclasses import dataclass

import numpy as np

from costmodel.stages.costs import Costs
from simulator.engine.amounts import TableRows, per_column, uniform
from simulator.engine.event_times import EventTimes
from simulator.engine.order_arrays import OFFLOAD, RELOAD, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Memory of all ranks.

    Attributes
    ----------
    num_ranks : int
    static_bytes : array of int64, shape (ranks,)
    rank, time_ns, change_bytes : arrays of int64
        Every change, in order of rank and then of time.
    """

    num_ranks: int
    static_bytes: Ints
    rank: Ints
    time_ns: Ints
    change_bytes: Ints

    def points(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Points (time_ns, bytes) at which a rank's memory changes, from the static part on."""
        low, high = np.searchsorted(self.rank, [rank, rank + 1])
        sizes = self.static_bytes[rank] + np.cumsum(self.change_bytes[low:high])
        moves = self.change_bytes[low:high] != 0
        later = zip(self.time_ns[low:high][moves].tolist(), sizes[moves].tolist(), strict=True)
        return ((0, int(self.static_bytes[rank])), *later)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Peak of each rank."""
        level, peaks = np.append(0, np.cumsum(self.change_bytes)), self.static_bytes.copy()
        bounds = np.searchsorted(self.rank, np.arange(self.num_ranks + 1))
        changes = bounds[1:] > bounds[:-1]
        first = bounds[:-1][changes]
        if len(first):
            peaks[changes] += np.maximum(0, np.maximum.reduceat(level[1:], first) - level[first])
        return tuple(peaks.tolist())


def memory(times: EventTimes) -> Memory:
    """Return the memory of all ranks under some times."""
    structure, costs = times.structure, times.costs
    arrays, num_ranks = structure.arrays, structure.schedule.graph.num_ranks
    static = np.zeros(num_ranks, np.int64)
    for stage, ranks in enumerate(structure.schedule.graph.ranks):
        static[list(ranks)] += costs.stages[stage].static_bytes
    change = _activation_changes(times)
    buffers = any(edge.size_bytes for edge in costs.edges)
    if buffers:
        change += _kept_inputs(times)
    moments = np.flatnonzero(change)
    action = moments // 2
    when = np.where(moments % 2, times.end[action], times.start[action])
    own = (arrays.rank[action], when, change[moments], _turns(arrays.code[action]))
    if not buffers and (own[3] == _IN_ORDER).all():
        return Memory(num_ranks, static, *own[:3])
    rank, time_ns, sizes, turn = map(np.concatenate, zip(own, *([_buffers(times)] if buffers else []), strict=True))
    order = _in_order(rank, time_ns, turn)
    return Memory(num_ranks, static, rank[order], time_ns[order], sizes[order])


_FREED, _IN_ORDER, _TAKEN = range(3)
"""What comes first of all that happens at one instant."""


def _in_order(rank: Ints, time_ns: Ints, turn: Ints) -> Ints:
    """Return the order by rank, then time, then turn; of what is alike the first stays first."""
    length = int(time_ns.max(initial=0)) + 1
    if length > (1 << 62) // (3 * (int(rank.max(initial=0)) + 1)):
        return np.lexsort((turn, time_ns, rank))
    return np.argsort((rank * length + time_ns) * 3 + turn, kind="stable")  # one key sorts faster than three


def _turns(code: Ints) -> Ints:
    """Return the turn of changes that actions make: those on the compute stream keep their order, copies are apart."""
    return np.where(code == OFFLOAD, _FREED, np.where(code == RELOAD, _TAKEN, _IN_ORDER))


def _activation_changes(times: EventTimes) -> Ints:
    """Change at each moment (two an action) from activations."""
    structure, costs = times.structure, times.costs
    holds, stage = structure.holds, structure.arrays.stage[structure.holds.forward]
    whole, kept = _tables(costs, structure.wiring.table_rows)
    column = structure.action_columns[holds.forward] if whole.shape[1] > 1 else 0
    whole, kept = whole[stage, column], kept[stage, column]
    amount = np.where(holds.part == 0, whole, np.where(holds.part == 1, whole - kept, kept))
    code = structure.arrays.code
    copied = (code[holds.take // 2] == RELOAD) | (code[holds.free // 2] == OFFLOAD)
    if copied.any():  # apart from the order of actions, so that a hold of no time would end before it begins
        amount = np.where(copied & (times.end[holds.free // 2] <= times.start[holds.take // 2]), 0, amount)
    change = np.zeros(2 * len(structure.arrays.actions), np.int64)
    np.add.at(change, holds.take, amount)
    np.subtract.at(change, holds.free, amount)
    return change


def _tables(costs: Costs, table_rows: TableRows) -> tuple[Ints, Ints]:
    """Activation and its part kept until W, by stage and column."""
    pairs = [(stage.activation_bytes, stage.weight_activation_bytes) for stage in costs.stages]
    if uniform(costs, table_rows):
        both = np.array(pairs, np.int64)
        return both[:, :1], both[:, 1:]
    tables = np.zeros((2, table_rows.num_stages, max(table_rows.num_groups) * table_rows.columns_a_group), np.int64)
    for stage, pair in enumerate(pairs):
        for table, amount in zip(tables, pair, strict=True):
            values = per_column(amount, table_rows, stage)
            table[stage, : len(values)] = values
    return tables[0], tables[1]


def _again(times: EventTimes) -> Ints:
    """For each action, the R of its F; -1 where there is none."""
    flow = times.structure.wiring.flow
    backward = flow.backward_of
    return np.where(backward >= 0, flow.recompute_of[backward], -1)


def _kept_inputs(times: EventTimes) -> Ints:
    """Change at each moment from inputs that F keeps for R, made on the rank itself."""
    arrays, (edges, kept, again) = times.structure.arrays, times.structure.inputs_kept
    change, multiples = np.zeros(2 * len(arrays.actions), np.int64), arrays.graph.multiples
    sizes = [edge.size_bytes * multiples[edge.target] // multiples[edge.source] for edge in times.costs.edges]
    amounts = np.array(sizes, np.int64)[edges]
    amounts = np.where(arrays.slice_index[kept] < 0, amounts, amounts // times.structure.wiring.table_rows.num_slices)
    np.add.at(change, 2 * kept, amounts)
    np.subtract.at(change, 2 * again + 1, amounts)
    return change


def _buffers(times: EventTimes) -> tuple[Ints, Ints, Ints, Ints]:
    """Ranks, times, changes and turns of send and receive buffers."""
    structure, messages = times.structure, times.structure.wiring.messages
    arrays, again = structure.arrays, _again(times)
    edge_bytes = np.array([edge.size_bytes for edge in times.costs.edges], np.int64)
    per_action = np.array([arrays.graph.multiples[edge.source] for edge in times.costs.edges])
    sizes = edge_bytes[messages.edge] * messages.num_carried // per_action[messages.edge]
    sizes = np.where(messages.piece >= 0, sizes // structure.wiring.table_rows.num_slices, sizes)
    reader = np.where(again[messages.target] >= 0, again[messages.target], messages.target)
    taken = np.concatenate([times.end[messages.source], times.received[0]])
    freed = np.concatenate([times.sent[1], times.end[reader]])
    held = freed > taken
    where = np.concatenate([arrays.rank[messages.source], arrays.rank[messages.target]])[held]
    sizes = np.tile(sizes, 2)[held]
    return (
        np.tile(where, 2),
        np.concatenate([freed[held], taken[held]]),
        np.concatenate([-sizes, sizes]),
        np.repeat([_FREED, _TAKEN], len(sizes)),
    )
