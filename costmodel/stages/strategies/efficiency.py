"""What a divided operator takes, and one in another precision than the profile's.

The profile's time is scaled by the ratio of two roofline estimates, so that a measured profile keeps its level; a
measurement at the shard's shape (``profile --tensor``) takes precedence. Without a catalogue device the ratio is that
of an ideal division. Leaves out kernels that only run on whole operators.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod

from costmodel.errors import UsageError
from costmodel.machines.catalogue import NARROW, kept_in
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.model.graph import Operator
from costmodel.model.launches import Times
from costmodel.model.origin import ROOFLINE
from costmodel.model.work import Work
from costmodel.roofline import central_ns
from costmodel.roofline.attention import kernel_factor, num_pairs
from costmodel.roofline.narrow import check_recipe, computed_in
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies.division import WITHIN_TENSOR, Degrees, ceil, divided_work, feeds_experts, is_expert
from costmodel.stages.strategies.kernel_launch import KernelLaunch
from costmodel.stages.strategies.kinds import term_of
from costmodel.stages.strategies.training import TrainingJob

SCORE_PASSES = 6


class Efficiency:
    """Times of divided operators of one profile at one micro-batch size."""

    def __init__(self, model: MeasuredOperators, training: TrainingJob) -> None:
        self._model, self._training = model, training
        self._profiled = model.profile.precision or "fp32"
        self._asked = training.precision or self._profiled
        name = model.profile.device.catalogue
        self._device = catalogue_device(name) if name else None
        self._estimates: dict[tuple[Work, str], Times] = {}
        self._known: dict[object, Times] = {}
        self._kernel_launch = KernelLaunch(model)
        self._rows: dict[Degrees, list[Times]] = {}
        self._measured = model.profile.shards
        if self._asked != self._profiled and self._device is None:
            raise UsageError(
                f"the profile was made in {self._profiled} on {model.profile.device.name!r}, which names no catalogue "
                f"device, so {self._asked} cannot be estimated; profile the model in {self._asked}, or leave "
                "--precision out"
            )
        self._recipe = training.recipe
        if self._asked == "fp8" and self._device:
            check_recipe(self._device, training.fp8_recipe)

    def times(self, position: int, degrees: Degrees) -> Times:
        """Return what one rank's part of an operator takes, communication left out."""
        if self._kernel_launch.known:
            if degrees not in self._rows:
                alone = [self._times(i, degrees) for i in range(len(self._model.profile.times))]
                self._rows[degrees] = self._kernel_launch.divided(alone)
            return self._rows[degrees][position]
        operator = self._model.profile.graph.operators[position]
        if not is_expert(operator) and not self._measured_as(operator):
            degrees = _without_experts(degrees)
        key = (self.alike[position], degrees)
        if key not in self._known:
            self._known[key] = self._times(position, degrees)
        return self._known[key]

    def _times(self, position: int, degrees: Degrees) -> Times:
        forward, inputs, weights = self._own(position, degrees)
        operator = self._model.profile.graph.operators[position]
        work, slower = operator.work, self._slower(position)
        if slower != 1.0:
            forward, inputs, weights = (round(slower * ns) for ns in (forward, inputs, weights))
        if work is not None and self._recipe and self._precision(position, self._asked) in NARROW:
            there, back = self._casts_ns(position, degrees, work)
            return forward + there, inputs + back, weights
        if work is None or not self._stores_scores(work):
            return forward, inputs, weights
        there, back, _ = self._estimate(_scores(divided_work(work, degrees, within=False)), self._asked)
        return forward + there, inputs + back, weights

    def _slower(self, position: int) -> float:
        """By how much the trainer's kernels take longer: where nothing was measured, all of them."""
        operator, training = self._model.profile.graph.operators[position], self._training
        work, slower = operator.work, 1.0
        if self._roofline:
            slower = self._estimated(term_of(operator), work)
        if work and work.kind in ("norm", "elementwise"):
            return slower * training.unfused
        own = self._precision(position, self._asked)
        slower *= training.fp8_matmul if own == "fp8" else 1.0
        return slower * self._recipe.product if self._recipe and own in NARROW else slower

    def _estimated(self, term: str, work: Work | None) -> float:
        term = "routed" if term == "memory" and self._routes else term
        slower = self._training.slower.get(term, 1.0)
        if term != "attention" or self._device is None or work is None or self._stores_scores(work):
            return slower
        return slower * kernel_factor(self._device.id, self._training.attention)

    @cached_property
    def _roofline(self) -> bool:
        return ROOFLINE in self._model.profile.origin.estimated

    @cached_property
    def _routes(self) -> bool:
        return any(operator.work and operator.work.experts for operator in self._model.profile.graph.operators)

    def _stores_scores(self, work: Work) -> bool:
        """Whether attention writes its scores, all of them though half are masked; unpriced off the catalogue."""
        return work.kind == "attention" and not self._training.flash and self._device is not None

    def _own(self, position: int, degrees: Degrees) -> Times:
        """Return what an operator's part takes as it was profiled."""
        operator = self._model.profile.graph.operators[position]
        model = self._model
        whole = model.forward_ns[position], model.backward_input_ns[position], model.backward_weight_ns[position]
        measured = self._shard(operator, degrees)
        if measured:
            return measured
        if operator.work is None:
            return whole
        stores = self._stores_scores(operator.work)
        if degrees.whole and self._asked == self._profiled and not stores:
            return whole
        divided = divided_work(operator.work, degrees, feeds_experts(model.profile.graph, position))
        divided = replace(divided, causal=False) if stores else _balanced(divided, operator.work)
        return self._scaled(whole, operator.work, divided, position)

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each operator a number that those share which do and take the same, as a whole and in shards."""
        model, graph = self._model, self._model.profile.graph
        times = zip(model.forward_ns, model.backward_input_ns, model.backward_weight_ns, strict=True)
        numbers: dict[object, int] = {}
        return tuple(
            numbers.setdefault(
                (
                    operator.work,
                    whole,
                    feeds_experts(graph, position),
                    self._measured_as(operator),
                    self._precision(position, NARROW[0]),
                    self._casts_first(position),
                    position if self._kernel_launch.known else 0,  # what comes before it tells, too
                ),
                len(numbers),
            )
            for position, (operator, whole) in enumerate(zip(graph.operators, times, strict=True))
        )

    def _measured_as(self, operator: Operator) -> str:
        """Return the name under which an operator's shards were measured; empty where they were not."""
        return operator.name if operator.name in self._measured else ""

    def _scaled(self, whole: Times, work: Work, divided: Work, position: int) -> Times:
        if self._device is None:
            share = _amount(divided) / _amount(work)
            return round(whole[0] * share), round(whole[1] * share), round(whole[2] * share)
        profiled, asked = (self._precision(position, name) for name in (self._profiled, self._asked))
        before, after = self._estimate(work, profiled), self._estimate(divided, asked)
        if not any(before):  # a view: what the host takes for it does not divide
            return whole
        # a part without an estimate of its own (the backward of what has no weights) follows the forward
        ratio: Callable[[int], float] = lambda i: (after[i] / before[i]) if before[i] else after[0] / max(1, before[0])  # noqa: E731
        return round(whole[0] * ratio(0)), round(whole[1] * ratio(1)), round(whole[2] * ratio(2))

    def _precision(self, position: int, precision: str) -> str:
        return computed_in(self._model.profile.graph, position, precision)

    def _casts_ns(self, position: int, degrees: Degrees, work: Work) -> tuple[int, int]:
        """Return what passes take over values before they are cast: the input, once for all that read it, and I's."""
        if not self._recipe or not self._recipe.amax_passes or self._device is None:
            return 0, 0
        part = divided_work(work, degrees, feeds_experts(self._model.profile.graph, position))
        row = Work("elementwise", "inner", part.tokens * max(1, part.active), passes=self._recipe.amax_passes)
        first = self._casts_first(position)
        there = self._estimate(replace(row, outer=part.inner), kept_in(self._asked))[0] if first else 0
        return there, self._estimate(replace(row, outer=part.outer), kept_in(self._asked))[0]

    def _casts_first(self, position: int) -> bool:
        """Whether no product before this one reads the same tensor, as queries, keys and values do."""
        return position not in self._casts_later

    @cached_property
    def _casts_later(self) -> frozenset[int]:
        graph, found = self._model.profile.graph, set[int]()
        for tensor in graph.tensors:
            readers = sorted(graph.index[name] for name in tensor.consumers)
            narrow = [i for i in readers if self._precision(i, NARROW[0]) in NARROW]
            found |= set(narrow[1:])
        return frozenset(found)

    def _estimate(self, work: Work, precision: str) -> Times:
        if (work, precision) not in self._estimates:
            assert self._device is not None  # noqa: S101 - asked by the caller
            self._estimates[work, precision] = central_ns(work, self._device, precision, self._model.microbatch_size)
        return self._estimates[work, precision]

    def _shard(self, operator: Operator, degrees: Degrees) -> Times | None:
        """Return what was measured at the shard's shape, if it was."""
        if operator.work is None or degrees.context * degrees.expert > 1 or self._asked != self._profiled:
            return None
        work = operator.work
        parts = degrees.expert_tensor if is_expert(operator) else degrees.tensor
        cut = "heads" if work.kind == "attention" and work.split in WITHIN_TENSOR else work.split
        rows = self._measured.get(operator.name, {}).get(f"{parts}/{cut}")
        if rows is None:
            return None
        forward, inputs, weights = (self._model.at(row) for row in rows)
        return forward, inputs, weights


@lru_cache(maxsize=4096)
def _without_experts(degrees: Degrees) -> Degrees:
    """Return degrees as operators that are no experts see them."""
    return replace(degrees, expert=1, expert_tensor=degrees.tensor)


def _balanced(divided: Work, work: Work) -> Work:
    """Return a causal attention's part when each rank of a ring sees as many pairs, and not the last one's part.

    Trainers deal the sequence out so: chunk i of 2 c goes with chunk 2 c - 1 - i (Llama 3, 2024, section 3.3.2).
    """
    if work.kind != "attention" or not work.causal or divided.tokens == work.tokens:
        return divided
    return replace(divided, context=ceil(num_pairs(work), work.tokens), causal=False)


def _scores(work: Work) -> Work:
    """Return what storing scores passes over: one product writes, softmax and dropout read and write, one reads."""
    return Work("elementwise", "inner", work.heads * work.tokens, outer=work.context, passes=SCORE_PASSES)


def _amount(work: Work) -> int:
    """Return what an ideal division divides: the product of an operator's dimensions."""
    return prod(max(1, n) for n in (work.tokens, work.inner, work.outer, work.heads))
