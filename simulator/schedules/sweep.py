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

from simulator.schedules.sweep_pipeline import PlaceCosts

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
        For each place, by how many per cent of a forward the warm-up may end after the first gradient.
    fill, skip : tuple of int
        For each place, one of the FILL and SKIP constants.
    staggered : bool
        Whether ranks keep ahead of those they feed while memory binds, or all fill their memory at once.
    """

    overshoot: tuple[int, ...]
    fill: tuple[int, ...]
    skip: tuple[int, ...]
    staggered: bool


@dataclass(frozen=True, slots=True)
class Result:
    """Orders by place, as (kind, index) pairs, and what they come to."""

    orders: tuple[tuple[tuple[str, int], ...], ...]
    span_ns: int
    step_time_ns: int
    peak_bytes: int


def sweep(line: PlaceCosts, choices: Choices) -> Result:
    """Return the orders that a set of choices leads to."""
    state = _Sweep(line, choices)
    state.warm_up()
    for index in range(line.num_actions):
        state.turn(index)
    return state.finish()


class _Sweep:
    """Orders under construction: per place its time, how far it has come, and what it holds.

    `held` is in bytes, `pending` the part of it that waits for weight gradients; `span` and `end` are what
    the place's span and last end come to if it waits no more.
    """

    def __init__(self, line: PlaceCosts, choices: Choices) -> None:
        self.line, self.choices = line, choices
        places = range(line.num_places)
        self.orders: list[list[tuple[str, int]]] = [[] for _ in places]
        self.forward_end: list[list[int]] = [[] for _ in places]
        self.input_end: list[list[int]] = [[] for _ in places]
        self.now = [0] * line.num_places
        self.weights = [0] * line.num_places
        self.held = [0] * line.num_places
        self.pending = [0] * line.num_places
        self.peak = [0] * line.num_places
        self.first = [0] * line.num_places
        self.span = [line.work_ns(place) for place in places]
        self.end = list(self.span)

    def warm_up(self) -> None:
        """Run the forwards that precede the first input gradient of each place."""
        for place, count in enumerate(warm_up_counts(self.line, self.choices)):
            for _ in range(count):
                self._forward(place)
            self.first[place] = self.forward_end[place][0] - self.line.forward[place][0]
            self.end[place] = self.first[place] + self.span[place]

    def turn(self, index: int) -> None:
        """Run the input gradient `index` of every place, and one forward each where it is time for one."""
        for place in range(self.line.num_places):
            while len(self.forward_end[place]) <= index:
                self._forward(place)
        for place in range(self.line.num_places - 1, -1, -1):
            if not self.line.backward[place]:
                while self._can_forward(place):
                    self._forward(place)
                continue
            ready = 0
            for target, delay in self.line.gradient_targets[place]:
                ready = max(ready, self.input_end[target][index] + delay)
            if index and self._can_forward(place) and self._wants_forward(place, ready):
                self._forward(place)
            self._input_gradient(place, index, max(ready, self.forward_end[place][index]))

    def finish(self) -> Result:
        """Run what is left of the weight gradients and sum up."""
        for place, has in enumerate(self.line.backward):
            while has and self.weights[place] < self.line.num_actions:
                self._weight_gradient(place)
        starts = [ends[0] - times[0] for ends, times in zip(self.forward_end, self.line.forward, strict=True)]
        return Result(
            tuple(map(tuple, self.orders)),
            max(now - start for now, start in zip(self.now, starts, strict=True)),
            max(self.now) - min(starts),
            max(self.peak),
        )

    def _can_forward(self, place: int) -> bool:
        done = len(self.forward_end[place])
        if done == self.line.num_actions:
            return False
        return all(len(self.forward_end[source]) > done for source, _ in self.line.sources[place])

    def _wants_forward(self, place: int, gradient_ready: int) -> bool:
        """Whether the next forward goes before an input gradient that arrives at `gradient_ready`."""
        line, done = self.line, len(self.forward_end[place])
        held = self.held[place] + line.activation[place][done]
        if held - self.pending[place] > line.room[place]:
            return False
        skip = self.choices.skip[place]
        if skip == SKIP_NEVER or any(len(self.forward_end[x]) >= done for x, _ in line.targets[place]):
            return True
        start = max(self.now[place], self._arrival(place, done))
        if held > line.room[place]:
            start += line.backward_weight[place][self.weights[place]]
        if start + line.forward[place][done] <= max(gradient_ready, self.now[place]):
            return True
        wait = max(0, gradient_ready - self.now[place])
        return skip == SKIP_SLACK and self.span[place] + wait > max(self.span)

    def _arrival(self, place: int, index: int) -> int:
        """When the inputs of a forward are there."""
        latest = 0
        for source, delay in self.line.sources[place]:
            latest = max(latest, self.forward_end[source][index] + delay)
        return latest

    def _forward(self, place: int) -> None:
        line, index = self.line, len(self.forward_end[place])
        need = line.activation[place][index] - line.room[place]
        while self.held[place] + need > 0 and self.weights[place] < len(self.input_end[place]):
            self._weight_gradient(place)
        start = self._wait(place, self._arrival(place, index)) if index else self._arrival(place, index)
        self.now[place] = start + line.forward[place][index]
        self.forward_end[place].append(self.now[place])
        self.orders[place].append(("F", index))
        if line.backward[place]:
            self.held[place] += line.activation[place][index]
            self.peak[place] = max(self.peak[place], self.held[place])

    def _input_gradient(self, place: int, index: int, ready: int) -> None:
        line = self.line
        self.now[place] = self._wait(place, ready) + line.backward_input[place][index]
        self.input_end[place].append(self.now[place])
        self.orders[place].append(("I", index))
        self.held[place] -= line.activation[place][index] - line.kept[place][index]
        self.pending[place] += line.kept[place][index]

    def _weight_gradient(self, place: int) -> None:
        index = self.weights[place]
        self.now[place] += self.line.backward_weight[place][index]
        self.weights[place] = index + 1
        self.orders[place].append(("W", index))
        self.held[place] -= self.line.kept[place][index]
        self.pending[place] -= self.line.kept[place][index]

    def _wait(self, place: int, ready: int) -> int:
        """Fill the wait until `ready` with weight gradients; return when the next action starts."""
        while self.now[place] < ready and self.weights[place] < len(self.input_end[place]):
            wait = ready - self.now[place]
            fits = wait >= self.line.backward_weight[place][self.weights[place]]
            if not fits and not self._too_long(place, wait):
                break
            self._weight_gradient(place)
        wait = max(0, ready - self.now[place])
        self.span[place] += wait
        self.end[place] += wait
        return self.now[place] + wait

    def _too_long(self, place: int, wait: int) -> bool:
        fill = self.choices.fill[place]
        if fill & FILL_SPAN and self.span[place] + wait > max(self.span):
            return True
        return bool(fill & FILL_STEP) and self.end[place] + wait > max(self.end)


def warm_up_counts(line: PlaceCosts, choices: Choices) -> list[int]:
    """Return how many forwards each place runs before its first input gradient."""
    counts = [line.num_actions] * line.num_places
    first_input = [0] * line.num_places
    for place in range(line.num_places - 1, -1, -1):
        if not line.backward[place]:
            continue
        ready = max((first_input[x] + delay for x, delay in line.gradient_targets[place]), default=0)
        least = max((counts[x] + 1 for x, _ in line.targets[place]), default=1)
        fitting = _fitting(line, place)
        # Ranks further on keep less, so that each stays ahead of those it feeds; not when all fits at once.
        lead = line.level[place] if choices.staggered and fitting < line.num_actions else 0
        count = min(least, fitting)
        while count < min(fitting, max(least, fitting - lead)) and _worth(line, choices, place, count, ready):
            count += 1
        counts[place] = count
        first_input[place] = max(ready, line.forward_ends[place][count - 1]) + line.backward_input[place][0]
    return _with_inputs(line, counts)


def _worth(line: PlaceCosts, choices: Choices, place: int, index: int, gradient_ready: int) -> bool:
    """Whether one more forward ends early enough before (or not too late after) the first gradient."""
    time_ns = line.forward[place][index]
    late = line.forward_ends[place][index] - gradient_ready
    return 100 * late <= choices.overshoot[place] * time_ns and late < time_ns


def _fitting(line: PlaceCosts, place: int) -> int:
    """Return how many activations a place can hold."""
    held = 0
    for index, size in enumerate(line.activation[place]):
        held += size
        if held > line.room[place]:
            return index
    return line.num_actions


def _with_inputs(line: PlaceCosts, counts: list[int]) -> list[int]:
    """Cut the counts to what the places before pass on."""
    for place, sources in enumerate(line.sources):
        counts[place] = min([counts[place], *(counts[source] for source, _ in sources)])
    return counts
