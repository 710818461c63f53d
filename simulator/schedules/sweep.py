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

from simulator.schedules.sweep_pipeline import PositionCosts

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


@dataclass(frozen=True, slots=True)
class Result:
    """Orders by position, as (kind, index) pairs, and what they come to."""

    orders: tuple[tuple[tuple[str, int], ...], ...]
    span_ns: int
    step_time_ns: int
    peak_bytes: int


def sweep(line: PositionCosts, choices: Choices) -> Result:
    """Return the orders that a set of choices leads to."""
    state = _Sweep(line, choices)
    state.warm_up()
    for index in range(line.num_actions):
        state.turn(index)
    return state.finish()


class _Sweep:
    """Orders under construction: per position its time, how far it has come, and what it holds.

    `held` is in bytes, `pending` the part of it that waits for weight gradients; `span` and `end` are what
    the position's span and last end come to if it waits no more.
    """

    def __init__(self, line: PositionCosts, choices: Choices) -> None:
        self.line, self.choices = line, choices
        positions = range(line.num_positions)
        self.orders: list[list[tuple[str, int]]] = [[] for _ in positions]
        self.forward_end: list[list[int]] = [[] for _ in positions]
        self.input_end: list[list[int]] = [[] for _ in positions]
        self.now = [0] * line.num_positions
        self.weights = [0] * line.num_positions
        self.held = [0] * line.num_positions
        self.pending = [0] * line.num_positions
        self.peak = [0] * line.num_positions
        self.first = [0] * line.num_positions
        self.span = [line.work_ns(position) for position in positions]
        self.end = list(self.span)

    def warm_up(self) -> None:
        """Run the forwards that precede the first input gradient of each position."""
        for position, count in enumerate(warm_up_counts(self.line, self.choices)):
            for _ in range(count):
                self._forward(position)
            self.first[position] = self.forward_end[position][0] - self.line.forward[position][0]
            self.end[position] = self.first[position] + self.span[position]

    def turn(self, index: int) -> None:
        """Run the input gradient `index` of every position, and one forward each where it is time for one."""
        for position in range(self.line.num_positions):
            while len(self.forward_end[position]) <= index:
                self._forward(position)
        for position in range(self.line.num_positions - 1, -1, -1):
            if not self.line.backward[position]:
                while self._can_forward(position):
                    self._forward(position)
                continue
            ready = 0
            for target, delay in self.line.gradient_targets[position]:
                ready = max(ready, self.input_end[target][index] + delay)
            if index and self._can_forward(position) and self._wants_forward(position, ready):
                self._forward(position)
            self._input_gradient(position, index, max(ready, self.forward_end[position][index]))

    def finish(self) -> Result:
        """Run what is left of the weight gradients and sum up."""
        for position, has in enumerate(self.line.backward):
            while has and self.weights[position] < self.line.num_actions:
                self._weight_gradient(position)
        starts = [ends[0] - times[0] for ends, times in zip(self.forward_end, self.line.forward, strict=True)]
        return Result(
            tuple(map(tuple, self.orders)),
            max(now - start for now, start in zip(self.now, starts, strict=True)),
            max(self.now) - min(starts),
            max(self.peak),
        )

    def _can_forward(self, position: int) -> bool:
        done = len(self.forward_end[position])
        if done == self.line.num_actions:
            return False
        return all(len(self.forward_end[source]) > done for source, _ in self.line.sources[position])

    def _wants_forward(self, position: int, gradient_ready: int) -> bool:
        """Whether the next forward goes before an input gradient that arrives at `gradient_ready`."""
        line, done = self.line, len(self.forward_end[position])
        held = self.held[position] + line.activation[position][done]
        if held - self.pending[position] > line.room[position]:
            return False
        skip = self.choices.skip[position]
        if skip == SKIP_NEVER or any(len(self.forward_end[x]) >= done for x, _ in line.targets[position]):
            return True
        start = max(self.now[position], self._arrival(position, done))
        if held > line.room[position]:
            start += line.backward_weight[position][self.weights[position]]
        if start + line.forward[position][done] <= max(gradient_ready, self.now[position]):
            return True
        wait = max(0, gradient_ready - self.now[position])
        return skip == SKIP_SLACK and self.span[position] + wait > max(self.span)

    def _arrival(self, position: int, index: int) -> int:
        """When the inputs of a forward are there."""
        latest = 0
        for source, delay in self.line.sources[position]:
            latest = max(latest, self.forward_end[source][index] + delay)
        return latest

    def _forward(self, position: int) -> None:
        line, index = self.line, len(self.forward_end[position])
        need = line.activation[position][index] - line.room[position]
        while self.held[position] + need > 0 and self.weights[position] < len(self.input_end[position]):
            self._weight_gradient(position)
        start = self._wait(position, self._arrival(position, index)) if index else self._arrival(position, index)
        self.now[position] = start + line.forward[position][index]
        self.forward_end[position].append(self.now[position])
        self.orders[position].append(("F", index))
        if line.backward[position]:
            self.held[position] += line.activation[position][index]
            self.peak[position] = max(self.peak[position], self.held[position])

    def _input_gradient(self, position: int, index: int, ready: int) -> None:
        line = self.line
        self.now[position] = self._wait(position, ready) + line.backward_input[position][index]
        self.input_end[position].append(self.now[position])
        self.orders[position].append(("I", index))
        self.held[position] -= line.activation[position][index] - line.kept[position][index]
        self.pending[position] += line.kept[position][index]

    def _weight_gradient(self, position: int) -> None:
        index = self.weights[position]
        self.now[position] += self.line.backward_weight[position][index]
        self.weights[position] = index + 1
        self.orders[position].append(("W", index))
        self.held[position] -= self.line.kept[position][index]
        self.pending[position] -= self.line.kept[position][index]

    def _wait(self, position: int, ready: int) -> int:
        """Fill the wait until `ready` with weight gradients; return when the next action starts."""
        while self.now[position] < ready and self.weights[position] < len(self.input_end[position]):
            wait = ready - self.now[position]
            fits = wait >= self.line.backward_weight[position][self.weights[position]]
            if not fits and not self._too_long(position, wait):
                break
            self._weight_gradient(position)
        wait = max(0, ready - self.now[position])
        self.span[position] += wait
        self.end[position] += wait
        return self.now[position] + wait

    def _too_long(self, position: int, wait: int) -> bool:
        fill = self.choices.fill[position]
        if fill & FILL_SPAN and self.span[position] + wait > max(self.span):
            return True
        return bool(fill & FILL_STEP) and self.end[position] + wait > max(self.end)


def warm_up_counts(line: PositionCosts, choices: Choices) -> list[int]:
    """Return how many forwards each position runs before its first input gradient."""
    counts = [line.num_actions] * line.num_positions
    first_input = [0] * line.num_positions
    for position in range(line.num_positions - 1, -1, -1):
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
        first_input[position] = max(ready, line.forward_ends[position][count - 1]) + line.backward_input[position][0]
    return _with_inputs(line, counts)


def _worth(line: PositionCosts, choices: Choices, position: int, index: int, gradient_ready: int) -> bool:
    """Whether one more forward ends early enough before (or not too late after) the first gradient."""
    time_ns = line.forward[position][index]
    late = line.forward_ends[position][index] - gradient_ready
    return 100 * late <= choices.overshoot[position] * time_ns and late < time_ns


def _fitting(line: PositionCosts, position: int) -> int:
    """Return how many activations a position can hold."""
    held = 0
    for index, size in enumerate(line.activation[position]):
        held += size
        if held > line.room[position]:
            return index
    return line.num_actions


def _with_inputs(line: PositionCosts, counts: list[int]) -> list[int]:
    """Cut the counts to what the positions before pass on."""
    for position, sources in enumerate(line.sources):
        counts[position] = min([counts[position], *(counts[source] for source, _ in sources)])
    return counts
