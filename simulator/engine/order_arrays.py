"""The orders of a schedule as arrays: what the engine reads instead of `Action` objects.

One entry an action, rank by rank in the order of each rank. Unit tables answer which action works on a
micro-batch (and sequence slice) of a stage. Leaves out what depends on what: see `dependencies`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InvalidInput
from simulator.actions import Action, Kind
from simulator.schedule import Schedule, StageGraph, check_multiples

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KINDS = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.R, Kind.REDUCE, Kind.OPT, Kind.OFFLOAD, Kind.RELOAD,
         Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)  # fmt: skip
"""Kinds that the engine knows, by code."""
F, I, W, B, R, REDUCE, OPT, OFFLOAD, RELOAD, SEND_F, RECV_F, SEND_B, RECV_B = range(len(KINDS))  # noqa: E741
_CODES = {kind: code for code, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True, eq=False)
class OrderArrays:
    """Actions of all ranks, rank by rank; every array has one entry an action.

    Attributes
    ----------
    schedule : Schedule
    actions : list of Action
    rank, code, stage, microbatch, slice_index, group : arrays of int64
        `code` indexes `KINDS`; `group` is the micro-batch divided by the stage's multiple. Of transfers only
        `rank` and `code` are read here (`transfers.matched` reads the rest).
    """

    schedule: Schedule
    actions: list[Action]
    rank: Ints
    code: Ints
    stage: Ints
    microbatch: Ints
    slice_index: Ints
    group: Ints

    @property
    def graph(self) -> StageGraph:
        """Stage graph of the schedule."""
        return self.schedule.graph


def order_arrays(schedule: Schedule, *, optimizer_last: bool = False) -> OrderArrays:
    """Read the orders of a schedule.

    Parameters
    ----------
    schedule : Schedule
    optimizer_last : bool
        Move the OPT of each rank behind all its other actions.

    Raises
    ------
    InvalidInput
        On a kind that the engine has no time for, or a stage, micro-batch or slice that is not there.
    """
    check_multiples(schedule.graph, schedule.num_microbatches)
    orders: Iterable[Iterable[Action]] = schedule.orders
    if optimizer_last:
        orders = [sorted(order, key=lambda action: action.kind is Kind.OPT) for order in orders]
    actions = list(chain.from_iterable(orders))
    try:
        codes = list(map(_CODES.__getitem__, map(attrgetter("kind"), actions)))
    except KeyError as unknown:
        kind = Kind(unknown.args[0])
        raise InvalidInput(
            f"the engine has no time for {kind} actions; it takes {', '.join(KINDS)}, so leave {kind} out of the orders"
        ) from None
    code = np.array(codes, np.int64)
    own = code < SEND_F
    stage, microbatch, slice_index = (_read(actions, name, own) for name in ("stage", "microbatch", "slice_index"))
    rank = np.repeat(np.arange(len(schedule.orders)), [len(order) for order in schedule.orders])
    arrays = OrderArrays(schedule, actions, rank, code, stage, microbatch, slice_index, microbatch)
    _check_indices(arrays)
    if max(schedule.graph.multiples) == 1:
        return arrays
    group = np.maximum(microbatch // np.array(schedule.graph.multiples)[stage], -1)
    return replace(arrays, group=group)


def _read(actions: Sequence[Action], name: str, chosen: Bools) -> Ints:
    """Return a field of the chosen actions, 0 for the others."""
    found = np.zeros(len(actions), np.int64)
    found[chosen] = list(map(attrgetter(name), actions if chosen.all() else compress(actions, chosen.tolist())))
    return found


def unit_table(arrays: OrderArrays, codes: tuple[int, ...]) -> Ints:
    """Return which action works on each unit, a micro-batch (and slice) of a stage.

    Returns
    -------
    array of int64, shape (stages, microbatches * slices)
        Index of the action of one of `codes`; -1 where there is none.
    """
    schedule, num_slices = arrays.schedule, arrays.schedule.num_slices
    multiples = np.array(schedule.graph.multiples)
    chosen = np.flatnonzero(np.isin(arrays.code, codes) if len(codes) > 1 else arrays.code == codes[0])
    table = np.full((schedule.graph.num_stages, schedule.num_microbatches * num_slices), -1, np.int64)
    num_filled = 0
    for shift in range(max(schedule.graph.multiples)):
        for part in range(num_slices):
            at = chosen
            if shift:
                at = at[multiples[arrays.stage[at]] > shift]
            if num_slices > 1:
                at = at[(arrays.slice_index[at] == part) | (arrays.slice_index[at] < 0)]
            table[arrays.stage[at], (arrays.microbatch[at] + shift) * num_slices + part] = at
            num_filled += len(at)
    if num_filled > np.count_nonzero(table >= 0):
        twice = np.setdiff1d(chosen, table)[0]
        raise InvalidInput(f"{arrays.actions[twice]} occurs twice in the orders; each action runs once")
    return table


def _check_indices(arrays: OrderArrays) -> None:
    schedule = arrays.schedule
    if len(schedule.orders) != schedule.graph.num_ranks:
        raise InvalidInput(
            f"orders of {len(schedule.orders)} ranks for stages on {schedule.graph.num_ranks}; give one order a rank"
        )
    multiples = np.array(schedule.graph.multiples)
    wide = (arrays.code == REDUCE) | (arrays.code == OPT)
    wrong = (arrays.stage < 0) | (arrays.stage >= schedule.graph.num_stages)
    wrong |= (arrays.microbatch >= schedule.num_microbatches) | ((arrays.microbatch < 0) & ~wide)
    wrong |= arrays.slice_index >= (schedule.num_slices if schedule.num_slices > 1 else 0)
    if not wrong.any() and max(schedule.graph.multiples) > 1:
        wrong |= (arrays.microbatch % multiples[arrays.stage] != 0) & ~wide
    wrong &= arrays.code < SEND_F
    if wrong.any():
        raise InvalidInput(
            f"{arrays.actions[int(np.argmax(wrong))]}: stages go up to {schedule.graph.num_stages - 1}, micro-batches "
            f"to {schedule.num_microbatches - 1} in steps of the stage's multiple, and an action has one of "
            f"{schedule.num_slices} slices (or the whole sequence)"
        )
