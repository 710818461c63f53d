"""The events of a schedule, and which waits for which.

Leaves out when they are, under some costs (`simulator.engine.structure`).
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from costmodel.errors import InvalidInput, UsageError
from costmodel.stages.costs import Costs
from simulator.engine.amounts import check_fit, layout, on_rank, times_table
from simulator.engine.closing import OPTIMIZER_MODES, wire_optimizer, wire_reductions
from simulator.engine.event_graph import Deadlock, EventGraph, Solution
from simulator.engine.flows import flows
from simulator.engine.holds import Holds, activation_holds, inputs_kept
from simulator.engine.offload_copies import wire_copies
from simulator.engine.order_arrays import OPT, REDUCE, Ints, OrderArrays, order_arrays
from simulator.engine.transfers import matched, wire_blocking, wire_links, wire_nccl
from simulator.engine.wiring import EventWiring, starts, wire_latency, wire_local
from simulator.schedule import Schedule

_LONGEST_NS = 1 << 60
P2P_MODES = {"latency": wire_latency, "blocking": wire_blocking, "links": wire_links, "nccl": wire_nccl}
"""How messages are carried."""


class WiredSchedule:
    """Events of a schedule and what they wait for.

    Parameters
    ----------
    schedule : Schedule
        Compute orders, or lowered ones with SEND and RECV.
    p2p : {"latency", "blocking", "links", "nccl"}
        What a message occupies (`simulator.engine.wiring`, `simulator.engine.transfers`).
    optimizer_mode : {"independent", "global-norm", "post-validated"}
        What an OPT waits for (`simulator.engine.closing`).

    Raises
    ------
    InvalidInput
        When an order waits on itself, an action occurs twice, or a result that one needs is missing.
    UsageError
        On a mode that there is not.
    """

    def __init__(self, schedule: Schedule, p2p: str = "latency", optimizer_mode: str = "independent") -> None:
        _check_mode("p2p", p2p, tuple(P2P_MODES))
        _check_mode("optimizer mode", optimizer_mode, OPTIMIZER_MODES)
        self.schedule, self.p2p = schedule, p2p
        self.arrays = order_arrays(schedule, optimizer_last=optimizer_mode != "independent")
        if not self.arrays.actions:
            raise InvalidInput("the orders are empty; there is nothing to simulate")
        self.wiring = self._wire(optimizer_mode)
        nothing = self.wiring.table_rows.zero_row
        self._rows = np.append(nothing, self.wiring.rows)
        self._columns, self._ranks = np.append(0, self.wiring.columns), np.append(-1, self.wiring.ranks)
        arrivals, delay_rows = self.wiring.arrivals()
        try:
            self.graph = EventGraph(self.wiring.first, arrivals)
        except Deadlock as deadlock:
            raise InvalidInput(self._describe(deadlock.blocked)) from None
        self._delay_rows = np.append(delay_rows, nothing)[self.graph.arrival_of]

    def _wire(self, optimizer_mode: str) -> EventWiring:
        arrays = self.arrays
        wiring = EventWiring(arrays, flows(arrays), layout(arrays), np.full(len(arrays.actions), -1), _pairs(arrays))
        if wiring.pairs is not None and self.p2p in ("blocking", "nccl"):
            raise InvalidInput(f"p2p {self.p2p} has no place for overlapped pairs; take latency or links")
        P2P_MODES[self.p2p](wiring, wiring.compute_actions())
        wire_local(wiring)
        wire_copies(wiring)
        wire_reductions(wiring)
        wire_optimizer(wiring, optimizer_mode)
        return wiring

    @cached_property
    def outer(self) -> tuple[Ints, Ints]:
        """Events among which the step's first start, and its last end, are."""
        arrays, event_of = self.arrays, self.wiring.event_of
        compute = self.wiring.compute_actions()
        opens = starts(arrays.rank[compute])
        beside = np.flatnonzero(arrays.code == REDUCE)
        first, last = compute[opens], compute[np.append(opens[1:], True)[: len(compute)]]
        return event_of[np.append(first, beside)], event_of[np.append(last, beside)]

    @cached_property
    def compute_events(self) -> Ints:
        """Events of all F, B, I, W and R."""
        return self.wiring.event_of[self.arrays.code < REDUCE]

    @cached_property
    def compute_ends(self) -> tuple[Ints, Ints]:
        """First and last event of each rank's F, B, I, W and R."""
        compute = np.flatnonzero(self.arrays.code < REDUCE)
        opens = starts(self.arrays.rank[compute])
        events = self.wiring.event_of[compute]
        return events[opens], events[np.append(opens[1:], True)[: len(compute)]]

    @cached_property
    def stage_of_event(self) -> Ints:
        """Stage of each event that is an action on a stage, -1 for messages."""
        acts = (self.arrays.code <= OPT) & (self.wiring.event_of >= 0)
        found = np.full(self.graph.num_events, -1)
        found[self.wiring.event_of[acts]] = self.arrays.stage[acts]
        return found

    @cached_property
    def holds(self) -> Holds:
        """From when to when actions hold memory."""
        return activation_holds(self.arrays, self.wiring.flow)

    @cached_property
    def inputs_kept(self) -> tuple[Ints, Ints, Ints]:
        """Edge, F and R of each input that F keeps for its R on the rank that made it."""
        return inputs_kept(self.arrays, self.wiring.flow)

    @cached_property
    def action_columns(self) -> Ints:
        """Column of each action in tables of costs."""
        return self.wiring.table_rows.column(self.arrays)

    @cached_property
    def transfer_actions(self) -> tuple[Ints, Ints] | None:
        """SEND and RECV actions of lowered orders, and the message of each."""
        return matched(self.wiring)

    def _describe(self, blocked: Sequence[int]) -> str:
        action_of = {event: action for action, event in enumerate(self.wiring.event_of.tolist()) if event >= 0}
        stuck = [action_of[event] for event in blocked if event in action_of]
        places = [f"{self.arrays.actions[action]} on rank {self.arrays.rank[action]}" for action in stuck]
        shown = ", ".join(places[:8]) + (f" and {len(places) - 8} more" if len(places) > 8 else "")
        return f"the orders wait on each other at {shown}; move one of these actions behind what it waits for"

    def solve(self, costs: Costs, speeds: Sequence[float]) -> Solution:
        """Return the times of all events under some costs."""
        return self.graph.solve(*self.amounts(costs, speeds))

    def amounts(self, costs: Costs, speeds: Sequence[float]) -> tuple[Ints, Ints]:
        """Durations of nothing and of all events, delays at all heads."""
        check_fit(costs, self.schedule.graph)
        _check_speeds(speeds, self.schedule.graph.num_ranks)
        if self.wiring.pairs is not None and any(speed != 1 for speed in speeds):
            raise InvalidInput(
                "overlapped pairs have a time of their own, not one for each speed; leave the speeds out"
            )
        try:
            table = times_table(costs, self.wiring.table_rows)
        except OverflowError:
            raise _too_long() from None
        at = self._rows if table.shape[1] == 1 else self._rows * table.shape[1] + self._columns
        delays: Ints = table[:, 0][self._delay_rows]
        durations = on_rank(table.ravel()[at], self._ranks, speeds)
        if self.wiring.pairs is not None and costs.pairs:
            self._overlap(durations, costs)
        if min(durations.min(), delays.min()) < 0 or durations.max() + delays.max() > _LONGEST_NS // len(durations):
            raise _too_long()
        return durations, delays

    def _overlap(self, durations: Ints, costs: Costs) -> None:
        """Give pairs with a time of their own that time, divided among the two as they are long alone."""
        assert self.wiring.pairs is not None  # noqa: S101 - asked before
        time_of = {(pair.forward, pair.backward): pair.pair_ns for pair in costs.pairs}
        forward, backward = self.wiring.pairs
        ends = zip(self.arrays.stage[forward].tolist(), self.arrays.stage[backward].tolist(), strict=True)
        own = np.array([time_of.get(end, -1) for end in ends], np.int64)
        chosen = own >= 0
        first, second = (self.wiring.event_of[one[chosen]] + 1 for one in (forward, backward))  # 0 is nothing's
        alone = durations[first], durations[second]
        part = (own[chosen] * (alone[0] / np.maximum(1, alone[0] + alone[1]))).astype(np.int64)
        durations[first], durations[second] = part, own[chosen] - part


def _pairs(arrays: OrderArrays) -> tuple[Ints, Ints] | None:
    """Return the F and the backward of each overlapped pair, as indices of actions."""
    pairs = arrays.schedule.pairs
    if not pairs:
        return None
    first = np.array([i for i, action in enumerate(arrays.actions) if action in pairs], np.int64)
    return first, first + 1


def _too_long() -> InvalidInput:
    return InvalidInput("times are below 0, or let the step exceed 2^60 ns (36 years); check their unit")


def _check_mode(what: str, given: str, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise UsageError(f"{what} {given!r}; choose one of {', '.join(allowed)}")


def _check_speeds(speeds: Sequence[float], num_ranks: int) -> None:
    if len(speeds) not in (0, num_ranks) or any(not 0 < speed < float("inf") for speed in speeds):
        raise InvalidInput(f"speeds {list(speeds)} for {num_ranks} ranks; give one positive factor a rank, or none")
