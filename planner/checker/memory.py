"""The peak of each rank's memory, worked out a second time, the plain way.

F takes its activation at its start; B frees it at its end, or I frees the part that only it needs and W
the rest; a forward without a backward frees it at its own end. With an R in the orders F keeps its inputs
until R ends and R takes the activation. A message takes its bytes on the sender until it has arrived and
on the receiver from its start until the action that reads it has ended. At one instant buffers are freed
first and taken last; actions of a rank follow each other. Leaves out rounding by allocators.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from costmodel.stages.costs import Costs, EdgeCost, at
from planner.checker.messages import Message, needed_messages
from planner.checker.orders import Key, backward_of
from planner.checker.steps import Layout, Step
from planner.checker.times import CheckedTimes

FREED, ACTING, TAKEN = range(3)
"""What happens first at one instant."""


class _Change(NamedTuple):
    """A change of one rank's memory; sorted they are in the order in which they happen."""

    time_ns: int
    turn: int
    position: int
    num_bytes: int


@dataclass(frozen=True)
class Ledger:
    """All that peaks follow from: who works where, what it costs and when it happens (legal orders only)."""

    layout: Layout
    computed: Mapping[Key, Step]
    costs: Costs
    times: CheckedTimes

    def peaks(self, num_ranks: int) -> tuple[int, ...]:
        """Return the peak of each rank."""
        changes: list[list[_Change]] = [[] for _ in range(num_ranks)]
        for (kind, stage, first), step in self.computed.items():
            if kind == "F":
                changes[step.rank] += self._activation(stage, first)
                changes[step.rank] += self._inputs_for_recompute(stage, first)
        edges = {(e.source, e.target): e for e in self.costs.edges}
        for message in needed_messages(self.layout):
            forward = message.kind == "F"
            edge = edges[(message.source, message.target) if forward else (message.target, message.source)]
            for rank, change in self._buffers(message, edge):
                changes[rank].append(change)
        return tuple(self._peak(rank, row) for rank, row in enumerate(changes))

    def _peak(self, rank: int, changes: list[_Change]) -> int:
        held = sum(self.costs.stages[s].static_bytes for s, ranks in enumerate(self.layout.ranks) if rank in ranks)
        peak = held
        for change in sorted(changes):
            held += change.num_bytes
            peak = max(peak, held)
        return peak

    def _starts(self, step: Step, num_bytes: int) -> _Change:
        return _Change(self.times.of(step)[0], ACTING, 2 * step.position, num_bytes)

    def _ends(self, step: Step, num_bytes: int) -> _Change:
        return _Change(self.times.of(step)[1], ACTING, 2 * step.position + 1, num_bytes)

    def _activation(self, stage: int, first: int) -> list[_Change]:
        cost, group = self.costs.stages[stage], first // self.layout.multiples[stage]
        whole = at(cost.activation_bytes, group)
        forward = self.computed["F", stage, first]
        taken = self._starts(self.computed.get(("R", stage, first), forward), whole)
        if not self.layout.backward[stage]:
            return [taken, self._ends(forward, -whole)]
        if ("B", stage, first) in self.computed:
            return [taken, self._ends(self.computed["B", stage, first], -whole)]
        late = at(cost.weight_activation_bytes, group)
        first_part = self._ends(self.computed["I", stage, first], late - whole)
        return [taken, first_part, self._ends(self.computed["W", stage, first], -late)]

    def _inputs_for_recompute(self, stage: int, first: int) -> list[_Change]:
        """Return what F keeps for R of outputs made on its own rank; what others sent stays in its buffer."""
        again = self.computed.get(("R", stage, first))
        if again is None:
            return []
        forward, found = self.computed["F", stage, first], []
        for edge in self.costs.edges:
            size = self.layout.multiples[edge.source]
            if edge.target == stage and self.layout.rank_of(edge.source, first // size * size) == forward.rank:
                kept = edge.size_bytes * self.layout.multiples[stage] // size
                found += [self._starts(forward, kept), self._ends(again, -kept)]
        return found

    def _buffers(self, message: Message, edge: EdgeCost) -> Iterator[tuple[int, _Change]]:
        """Yield (rank, change) of a message's buffers at both ends."""
        multiples = self.layout.multiples
        stop = min(message.source_group + multiples[message.source], message.target_group + multiples[message.target])
        size = edge.size_bytes * (stop - message.microbatch) // multiples[edge.source]
        left = self.times.of(self._end_of(message.kind, message.source, message.source_group))[1]
        reader = self._end_of(message.kind, message.target, message.target_group)
        if message.kind == "F":
            reader = self.computed.get(("R", message.target, message.target_group), reader)
        for rank, freed in ((message.sender, left + edge.p2p_ns), (message.receiver, self.times.of(reader)[1])):
            if freed > left:
                yield rank, _Change(left, TAKEN, 0, size)
                yield rank, _Change(freed, FREED, 0, -size)

    def _end_of(self, kind: str, stage: int, first: int) -> Step:
        """Return the step that makes or reads a message at one of its ends."""
        return self.computed["F", stage, first] if kind == "F" else backward_of(self.computed, stage, first)
