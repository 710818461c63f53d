"""When the actions of a schedule start and end under some costs, and what follows from it.

Arrays have one entry an action, rank by rank in the order of each rank (`actions`). Computed when asked for. Leaves out
memory and spans, which `simulator.engine.times` adds.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from costmodel.stages.costs import Costs
from simulator.actions import Action
from simulator.engine.event_graph import Solution
from simulator.engine.order_arrays import SEND_B, SEND_F, Ints
from simulator.engine.wired_schedule import WiredSchedule


class EventTimes:
    """Result of timing a schedule.

    Attributes
    ----------
    structure : WiredSchedule
    costs : Costs
    solve : callable
        Makes the times of all events.
    known_ns : (int, int), optional
        Step time and span, where they are known without.
    """

    def __init__(
        self,
        structure: WiredSchedule,
        costs: Costs,
        solve: Callable[[], Solution],
        known_ns: tuple[int, int] | None = None,
    ) -> None:
        self.structure, self.costs, self._solve, self._known_ns = structure, costs, solve, known_ns

    @property
    def actions(self) -> list[Action]:
        """All actions, rank by rank."""
        return self.structure.arrays.actions

    @cached_property
    def _solution(self) -> Solution:
        return self._solve()

    @cached_property
    def event_start(self) -> Ints:
        """Start of each event, ns."""
        return self._solution.start()

    @cached_property
    def event_end(self) -> Ints:
        """End of each event, ns."""
        return self._solution.end()

    @cached_property
    def start(self) -> Ints:
        """Start of each action, ns; of a SEND or RECV the start of its transfer, in a pair that of the pair."""
        return self._of_actions(self.event_start, 0)

    @cached_property
    def end(self) -> Ints:
        """End of each action, ns."""
        return self._of_actions(self.event_end, 1)

    def _of_actions(self, events: Ints, which: int) -> Ints:
        structure = self.structure
        wiring = structure.wiring
        found: Ints = events[wiring.leaves(wiring.event_of) if which else wiring.enters(wiring.event_of)]
        if structure.transfer_actions is not None:
            actions, messages = structure.transfer_actions
            sends = np.isin(structure.arrays.code[actions], (SEND_F, SEND_B))
            found[actions] = np.where(sends, self.sent[which][messages], self.received[which][messages])
        return found

    @cached_property
    def sent(self) -> tuple[Ints, Ints]:
        """Start and end of each message on its sender's side, ns."""
        wiring = self.structure.wiring
        if wiring.sent_by is not None:
            return self.event_start[wiring.sent_by], self.event_end[wiring.sent_by]
        start = self.event_end[wiring.leaves(wiring.event_of[wiring.messages.source])]
        return start, start + np.array([edge.p2p_ns for edge in self.costs.edges], np.int64)[wiring.messages.edge]

    @cached_property
    def received(self) -> tuple[Ints, Ints]:
        """Start and end of each message on its receiver's side, ns."""
        by = self.structure.wiring.received_by
        return self.sent if by is None else (self.event_start[by], self.event_end[by])

    @cached_property
    def step_time_ns(self) -> int:
        """First start to last end over all ranks."""
        if self._known_ns:
            return self._known_ns[0]
        firsts, lasts = self.structure.outer
        return int(self._solution.end(lasts).max() - self._solution.start(firsts).min())

    @cached_property
    def span_ns(self) -> int:
        """Largest, over ranks, of last end minus first start of the rank's own compute."""
        if self._known_ns:
            return self._known_ns[1]
        firsts, lasts = self.structure.compute_ends
        if not len(firsts):
            return 0
        return int((self._solution.end(lasts) - self._solution.start(firsts)).max())

    @cached_property
    def compute_ns(self) -> int:
        """Compute (F, B, I, W and R) of all ranks together."""
        return int(self._solution.duration(self.structure.compute_events).sum())

    @cached_property
    def on_path_ns(self) -> tuple[int, ...]:
        """What the actions of each stage take of one longest way through the step (a critical path), ns.

        The step is the longest of all ways through it: were each stage k times as slow, it would take at least the sum
        of (k - 1) x these more.
        """
        structure, solution = self.structure, self._solution
        lasts = structure.outer[1]
        ways = structure.graph.way(solution, int(lasts[solution.end(lasts).argmax()]))
        events = np.concatenate([np.arange(row.start, row.stop) for row in ways])
        stages = structure.stage_of_event[events]
        acting = stages >= 0
        found = np.zeros(len(self.costs.stages), np.int64)
        np.add.at(found, stages[acting], solution.duration(events[acting]))
        return tuple(found.tolist())

    @property
    def bubble_ratio(self) -> float:
        """1 - compute / (ranks x step time)."""
        return self._bubble(self.step_time_ns)

    @property
    def bubble_ratio_span(self) -> float:
        """1 - compute / (ranks x span)."""
        return self._bubble(self.span_ns)

    def _bubble(self, length_ns: int) -> float:
        return 1 - self.compute_ns / (self.structure.schedule.graph.num_ranks * length_ns) if length_ns else 0.0
