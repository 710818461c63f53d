"""When what an action needs was made, and when it had come to its rank, read from a timeline.

Serves the accounting of idle time and the critical path. A result of another rank has arrived when its
RECV ends (timelines hold messages whether or not the orders are lowered); one without a RECV when it was
made. Leaves out what an action waits for besides data: its rank's order, reductions, the optimizer's barrier.
"""

from dataclasses import dataclass, replace

from costmodel.errors import InvalidInput
from simulator.actions import COMPUTE, RECEIVES, Action
from simulator.dependencies import needs, overlapping, transfers
from simulator.schedule import Schedule
from simulator.timeline import Span, Timeline


@dataclass(frozen=True, slots=True)
class Input:
    """One result that an action needs.

    Attributes
    ----------
    made : Span
        The action that makes it.
    arrived_ns : int
        When it was there.
    send : Action or None
        The message that carried it; None on one rank.
    """

    made: Span
    arrived_ns: int
    send: Action | None


class Arrivals:
    """Inputs of the actions of a timed schedule.

    Raises
    ------
    InvalidInput
        When the timeline lacks an action of the schedule.
    """

    def __init__(self, schedule: Schedule, timeline: Timeline) -> None:
        self._graph = schedule.graph
        self._needs, self._pairs = needs(schedule), schedule.pairs
        self._spans = {span.action: span for span in timeline.spans if span.action.kind in COMPUTE}
        for first, second in self._pairs.items():  # whose results leave together
            self._spans[first] = replace(self._spans[first], end_ns=self._spans[second].end_ns)
        self._received = {span.action: span.end_ns for span in timeline.spans if span.action.kind in RECEIVES}
        absent = next((action for action in self._needs if action not in self._spans), None)
        if absent is not None:
            raise InvalidInput(f"the timeline lacks {absent}; simulate this very schedule")

    def of(self, action: Action) -> tuple[Input, ...]:
        """Return what a compute action needs, in no order of time; a pair's F what its backward needs, too."""
        beside = self._pairs.get(action)
        return tuple(self._input(need, each) for each in (action, beside) if each for need in self._needs[each])

    def _input(self, need: Action, action: Action) -> Input:
        made = self._spans[need]
        if self._spans[action].rank != made.rank:
            for transfer in transfers(self._graph, need, self._needs):
                send = transfer.send
                group = overlapping(self._graph, action.stage, send.microbatch, send.microbatch + 1)[0]
                alike = action.slice_index in (-1, send.slice_index)
                if send.peer == action.stage and group == action.microbatch and alike:
                    return Input(made, self._received.get(transfer.receive, made.end_ns), send)
        return Input(made, made.end_ns, None)
