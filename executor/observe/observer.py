"""What watches a step without being part of it: measures its actions and waits, and holds them in an emulated run.

A job runs without one. Leaves out other ranks (`measure`) and who is still there (`watch`).
"""

import time

from executor.context import RankContext
from executor.observe.planned import planned_times
from executor.observe.recording import RawSpan, Recorder
from executor.program import Instruction


class Observer:
    """Runs a rank's instructions one by one and notes when.

    Parameters
    ----------
    context : RankContext
    emulates : bool
        Whether each action is held for its planned time.

    Attributes
    ----------
    recorder : Recorder
        Of the last step; messages and sums note their waits in it.
    """

    def __init__(self, context: RankContext, emulates: bool) -> None:
        self.recorder = Recorder.on(context.device)
        planned = planned_times(context.plan, context.order)
        self._planned_ns = {action: planned(action) for action in context.order}
        self._emulates, self._posting_ns, links = emulates, 0, context.plan.cluster.links
        self._host_time_planned = links is not None and "p2p_host" in links.classes

    def begin(self) -> None:
        """Start a step."""
        self.recorder.clear()

    def run(self, instruction: Instruction) -> None:
        """Do one instruction."""
        received = instruction.collect() if instruction.collect is not None else None
        mark, start = self.recorder.mark(), time.perf_counter_ns()
        instruction.execute(received)
        if self._emulates:
            self._hold(instruction, start)
        self.recorder.note(instruction.action, instruction.stream, mark)

    def _hold(self, instruction: Instruction, start: int) -> None:
        """Hold an action for its planned time, less what messages since the last one took if the plan counts that."""
        spent = time.perf_counter_ns() - start
        if instruction.stream in ("send", "receive"):
            self._posting_ns += spent if self._host_time_planned else 0
            return
        left = self._planned_ns[instruction.action] - spent - self._posting_ns
        self._posting_ns = 0
        if left > 0:
            time.sleep(left / 1e9)

    def measured(self) -> list[RawSpan]:
        """Return the last step's spans: actions, waits for messages and for sums of gradients.

        A receive has two: the call that posts it, and the later wait.
        """
        return self.recorder.spans()

    def excess_ns(self) -> int:
        """Return how much longer than planned the last step's actions, with their messages, took on this rank."""
        spans = self.recorder.spans(waits=False)
        planned = sum(self._planned_ns[action] for action, stream, _, _ in spans if stream == "compute")
        return sum(end - start for _, stream, start, end in spans if stream != "collective") - planned
