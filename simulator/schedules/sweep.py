"""One sweep heuristic of zero-bubble scheduling: orders and their exact times from a handful of choices.

Reimplements the automatic scheduling of Qi et al., ICLR 2024, section 3.1, from its description. Every
rank first runs as many forwards as memory allows and as end before the gradient of the first
micro-batch can arrive; then ranks take one forward and one input gradient in turn, visited from the last
to the first for one micro-batch after the other, so that it is known when the gradient arrives: weight
gradients fill the wait, or make room for the next forward. A rank stays one forward ahead of those it
feeds. Left over weight gradients come last.

Times are exact for the order that results (`latency` mode). What goes beyond the description: choices are
made per rank, and a weight gradient may also be judged by the end of the step instead of the span.
"""

from dataclasses import dataclass

from simulator.schedules.split_progress import Found, SplitProgress
from simulator.schedules.split_stages import SplitStages

FILL_NEVER, FILL_SPAN, FILL_STEP, FILL_BOTH = range(4)
"""When a weight gradient that does not fit into a wait is done all the same: never, or when waiting would
make this rank the one with the longest span, or the one that ends last, or either."""

SKIP_NEVER, SKIP_LATE, SKIP_SLACK = range(3)
"""When a forward that is not needed yet is left out of its turn: never, when it would delay the input
gradient, or when it would and this rank has waited less than the one that has waited most."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What a sweep is free to choose.

    Attributes
    ----------
    overshoot : tuple of int
        For each position, by how many per cent of a forward the warm-up may end after the first gradient.
    fill, skip : tuple of int
        For each position, one of the FILL and SKIP constants.
    staggered : bool
        Whether ranks keep ahead of those they feed while memory binds, or all fill their memory at once.
    """

    overshoot: tuple[int, ...]
    fill: tuple[int, ...]
    skip: tuple[int, ...]
    staggered: bool


def sweep(line: SplitStages, choices: Choices) -> Found:
    """Return the orders that a set of choices leads to."""
    state = _Sweep(line, choices)
    state.warm_up()
    for index in range(line.num_actions):
        state.turn(index)
    return state.finished()


class _Sweep(SplitProgress):
    """One stage a rank, so that a position is also its rank; waits are counted on top of a rank's work."""

    def __init__(self, line: SplitStages, choices: Choices) -> None:
        super().__init__(line, [line.work_ns(position) for position in range(line.num_stages)])
        self.choices = choices

    def warm_up(self) -> None:
        """Run the forwards that precede the first input gradient of each position."""
        for position, count in enumerate(warm_up_counts(self.line, self.choices)):
            for _ in range(count):
                self._forward(position)

    def turn(self, index: int) -> None:
        """Run the input gradient `index` of every position, and one forward each where it is time for one."""
        ahead = self.ends["F"]
        for position in range(self.line.num_stages):
            while len(ahead[position]) <= index:
                self._forward(position)
        for position in range(self.line.num_stages - 1, -1, -1):
            if not self.line.backward[position]:
                while self._can_forward(position):
                    self._forward(position)
                continue
            ready = 0
            for target, delay in self.line.gradient_targets[position]:
                ready = max(ready, self.ends["I"][target][index] + delay)
            if index and self._can_forward(position) and self._wants_forward(position, ready):
                self._forward(position)
            ready = max(ready, ahead[position][index])
            self._fill(position, ready)
            self.run("I", position, ready)

    def _can_forward(self, position: int) -> bool:
        return len(self.ends["F"][position]) < self.line.num_actions and self.arrival("F", position) is not None

    def _wants_forward(self, position: int, gradient_ready: int) -> bool:
        """Whether the next forward goes before an input gradient that arrives at `gradient_ready`."""
        line, ahead = self.line, self.ends["F"]
        done = len(ahead[position])
        held = self.held[position] + line.activation[position][done]
        if held - self.pending[position] > line.room[position]:
            return False
        skip = self.choices.skip[position]
        if skip == SKIP_NEVER or any(len(ahead[x]) >= done for x, _ in line.targets[position]):
            return True
        start = max(self.now[position], self.arrival("F", position) or 0)
        if held > line.room[position]:
            start += self.weight_ns(position)
        if start + line.time["F"][position][done] <= max(gradient_ready, self.now[position]):
            return True
        wait = max(0, gradient_ready - self.now[position])
        return skip == SKIP_SLACK and self.waited[position] + wait > max(self.waited)

    def _forward(self, position: int) -> None:
        self.make_room(position)
        arrival = self.arrival("F", position)
        if self.rows[position]:
            self._fill(position, arrival or 0)
        self.run("F", position, arrival)

    def _fill(self, position: int, ready: int) -> None:
        """Fill the wait until `ready` with weight gradients."""
        while self.late[position] and (wait := ready - self.now[position]) > 0:
            if wait < self.weight_ns(position) and not self._too_long(position, wait):
                break
            self.weight(position)

    def _too_long(self, position: int, wait: int) -> bool:
        fill = self.choices.fill[position]
        if fill & FILL_SPAN and self.waited[position] + wait > max(self.waited):
            return True
        if not fill & FILL_STEP:
            return False
        ends = map(sum, zip(self.first, self.waited, strict=True))
        return self.first[position] + self.waited[position] + wait > max(ends)


def warm_up_counts(line: SplitStages, choices: Choices) -> list[int]:
    """Return how many forwards each position runs before its first input gradient."""
    counts = [line.num_actions] * line.num_stages
    first_input = [0] * line.num_stages
    for position in range(line.num_stages - 1, -1, -1):
        if not line.backward[position]:
            continue
        ready = max((first_input[x] + delay for x, delay in line.gradient_targets[position]), default=0)
        least = max((counts[x] + 1 for x, _ in line.targets[position]), default=1)
        fitting = _fitting(line, position)
        # Ranks further on keep less, so that each stays ahead of those it feeds; not when all fits at once.
        lead = line.level[position] if choices.staggered and fitting < line.num_actions else 0
        count = min(least, fitting)
        while count < min(fitting, max(least, fitting - lead)) and _worth(line, choices, position, count, ready):
            count += 1
        counts[position] = count
        first_input[position] = max(ready, line.forward_ends[position][count - 1]) + line.time["I"][position][0]
    return _with_inputs(line, counts)


def _worth(line: SplitStages, choices: Choices, position: int, index: int, gradient_ready: int) -> bool:
    """Whether one more forward ends early enough before (or not too late after) the first gradient."""
    time_ns = line.time["F"][position][index]
    late = line.forward_ends[position][index] - gradient_ready
    return 100 * late <= choices.overshoot[position] * time_ns and late < time_ns


def _fitting(line: SplitStages, position: int) -> int:
    """Return how many activations a position can hold."""
    held = 0
    for index, size in enumerate(line.activation[position]):
        held += size
        if held > line.room[position]:
            return index
    return line.num_actions


def _with_inputs(line: SplitStages, counts: list[int]) -> list[int]:
    """Cut the counts to what the positions before pass on."""
    for position, sources in enumerate(line.sources):
        counts[position] = min([counts[position], *(counts[source] for source, _ in sources)])
    return counts
