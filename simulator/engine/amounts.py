"""Costs as one table: a row for each thing that takes time or memory, a column for each action of a stage.

Rules: B takes I + W. A stage with a recompute time runs its forward again inside I or B, unless the
orders hold an R of its own for that action. A sequence slice takes its share of the action, an n-th each
(integers by largest remainder, in order of slice), or its own value where the costs list one a slice.
A rank of speed s takes round(time / s), halves up. Transfers and reductions do not follow rank speeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Amount, Costs, StageCost, at
from simulator.engine.order_arrays import KINDS, Ints, OrderArrays
from simulator.schedule import StageGraph

ALONE_I, ALONE_B = len(KINDS), len(KINDS) + 1
"""Rows of I and B whose action has an R of its own."""
_NUM_TIMES = len(KINDS) + 2
_PER_ACTION = ("forward_ns", "backward_input_ns", "backward_weight_ns", "recompute_ns",
               "activation_bytes", "weight_activation_bytes")  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableRows:
    """Where the table keeps what.

    Rows are the kinds of actions (and `ALONE_I`, `ALONE_B`) by stage, then the edges, then one of zeros.
    """

    num_stages: int
    num_edges: int
    num_groups: tuple[int, ...]
    num_slices: int

    @property
    def edge_row(self) -> int:
        """Row of the first edge."""
        return _NUM_TIMES * self.num_stages

    @property
    def zero_row(self) -> int:
        """The row of zeros."""
        return self.edge_row + self.num_edges

    @property
    def columns_a_group(self) -> int:
        """A column for the whole action, and one for each slice."""
        return self.num_slices + 1 if self.num_slices > 1 else 1

    def row(self, code: Ints, stage: Ints) -> Ints:
        """Rows of actions of some kinds."""
        return code * self.num_stages + stage

    def column(self, arrays: OrderArrays) -> Ints:
        """Columns of all actions."""
        if self.num_slices == 1:
            return np.maximum(arrays.group, 0)
        return np.maximum(arrays.group, 0) * self.columns_a_group + arrays.slice_index + 1


def layout(arrays: OrderArrays) -> TableRows:
    """Return the layout of costs for a schedule."""
    graph, schedule = arrays.graph, arrays.schedule
    groups = tuple(schedule.num_microbatches // k for k in graph.multiples)
    return TableRows(graph.num_stages, len(graph.edges), groups, schedule.num_slices)


def uniform(costs: Costs, table_rows: TableRows) -> bool:
    """Whether each stage has one value for all actions, so that the table needs one column."""
    if table_rows.num_slices > 1:
        return False
    return all(isinstance(getattr(stage, name), int) for stage in costs.stages for name in _PER_ACTION)


def times_table(costs: Costs, table_rows: TableRows) -> Ints:
    """Return the table of times.

    Returns
    -------
    array of int64, shape (rows, columns)
        One column where all amounts are the same for every action.
    """
    edges = [edge.p2p_ns for edge in costs.edges]
    if uniform(costs, table_rows):
        rows = [_rows(stage) for stage in costs.stages]
        return np.array([row[i] for i in range(_NUM_TIMES) for row in rows] + [*edges, 0], np.int64)[:, None]
    table = np.zeros((table_rows.zero_row + 1, max(table_rows.num_groups) * table_rows.columns_a_group), np.int64)
    by_kind = table[: table_rows.edge_row].reshape(_NUM_TIMES, table_rows.num_stages, -1)
    for index, stage in enumerate(costs.stages):
        amounts = (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns, stage.recompute_ns)
        f, i, w, r = (per_column(amount, table_rows, index) for amount in amounts)
        wide = np.zeros_like(f)
        copied = per_column(stage.offload_ns, table_rows, index)
        closing = (wide + stage.reduce_ns, wide + stage.optimizer_ns)
        for kind, row in enumerate((f, i + r, w, i + w + r, r, *closing, copied, copied)):
            by_kind[kind, index, : len(f)] = row
        by_kind[ALONE_I, index, : len(f)], by_kind[ALONE_B, index, : len(f)] = i, i + w
    table[table_rows.edge_row : table_rows.zero_row] = np.array(edges, np.int64)[:, None]
    return table


def _rows(stage: StageCost) -> list[int]:
    """Return the times of a stage whose actions are alike, by kind."""
    f, i, w, r = (
        at(amount, 0)
        for amount in (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns, stage.recompute_ns)
    )
    closing, copied = [stage.reduce_ns, stage.optimizer_ns], [stage.offload_ns] * 2
    return [f, i + r, w, i + w + r, r, *closing, *copied, 0, 0, 0, 0, i, i + w]


def per_column(amount: Amount, table_rows: TableRows, stage: int) -> Ints:
    """Return a stage's amount by column.

    Raises
    ------
    InvalidInput
        When a list is not as long as the stage has actions (or slices of actions).
    """
    groups, slices = table_rows.num_groups[stage], table_rows.num_slices
    values = np.full(groups, amount) if isinstance(amount, int) else np.array(amount, np.int64)
    if len(values) not in (groups, groups * slices):
        raise InvalidInput(f"stage {stage} lists {len(values)} values for {groups} actions; give one an action")
    if slices == 1:
        return values
    if len(values) == groups:
        share = values[:, None] // slices + (np.arange(slices) < values[:, None] % slices)
    else:
        share = values.reshape(groups, slices)
    return np.concatenate([share.sum(axis=1, keepdims=True), share], axis=1).ravel()


def on_rank(times: Ints, ranks: Ints, speeds: Sequence[float]) -> Ints:
    """Return times on ranks of some speed; rank -1 has speed 1."""
    if not len(speeds) or all(speed == 1 for speed in speeds):
        return times
    factor: NDArray[np.float64] = np.append(np.asarray(speeds, np.float64), 1.0)[ranks]
    return np.where(factor == 1, times, np.floor(np.minimum(times / factor + 0.5, 2.0**61)).astype(np.int64))


def check_fit(costs: Costs, graph: StageGraph) -> None:
    """Refuse costs of another stage graph."""
    ends = [(edge.source, edge.target) for edge in costs.edges]
    if len(costs.stages) != graph.num_stages or ends != [(edge.source, edge.target) for edge in graph.edges]:
        raise InvalidInput(
            f"costs of {len(costs.stages)} stages with edges {ends} for a schedule of {graph.num_stages} stages with "
            f"other edges or another order of them; simulate a schedule with the costs that it was made for"
        )
