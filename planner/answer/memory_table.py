"""What each rank holds by strategy, whether that fits, how far micro-batch and sequence may grow, and what would help.

Every figure is of a plan with all choices fixed, priced and simulated as `penstock plan` does, in equal stages of whole
layers. Memory is affine in the micro-batch and nearly so in the sequence: sizes are solved for and then evaluated.
Leaves out times, but to tell which of several changes is the cheapest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from math import floor, gcd

from costmodel.errors import PenstockError
from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from costmodel.stages.strategies.memory import OUTSIDE
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluator, Run
from planner.candidate.fit import NO_LIMIT
from planner.candidate.fixed import fixed_candidate, fixed_evaluator
from planner.candidate.upper_memory import most_in_flight, stage_terms, upper_bytes
from planner.plan.fitting import FITS, fitting
from planner.question.problem import Problem
from planner.question.space import Space

LARGEST = 4096
"""Samples of a micro-batch up to which a largest one is sought."""
LONGEST = 1 << 20
"""Tokens of a sample up to which a longest sequence is sought."""
MOST_TRIED = 5
"""Sizes that are evaluated in search of the largest one that fits."""
MOST_TENSOR = 8
"""Tensor-parallel ranks: those of a host."""
STEP_TOKENS = 256
"""Sequences are multiples of it."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The fullest rank of a plan: estimate and upper bound, terms by name, the word, and the step."""

    point_bytes: int
    upper_bytes: int
    terms: dict[str, dict[str, int]]
    fits: str
    step_time_ns: int


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One strategy, as the JSON of ``penstock memory`` has it; 0 where no size fits, None where none was asked."""

    strategy: str
    microbatch_size: int
    held: HeldMemory
    largest_microbatch_size: int
    longest_sequence: int | None
    change: str | None

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        held = self.held
        return {
            "strategy": self.strategy,
            "microbatch_size": self.microbatch_size,
            "point_bytes": held.point_bytes,
            "upper_bytes": held.upper_bytes,
            "terms": held.terms,
            "fits": held.fits,
            "largest_microbatch_size": self.largest_microbatch_size,
            "longest_sequence": self.longest_sequence,
            "change": self.change,
        }


@dataclass
class MemoryTable:
    """Rows of one model on one number of devices.

    Parameters
    ----------
    describe : callable
        Returns the profile at a sequence length; 0 asks for the model's own.
    sequence : int
        Tokens of a sample; 0 where the model has no other than its own.
    num_devices, microbatch_size : int
    batch : int
        Samples of a step; 0 for two micro-batches a device, with which every pipeline gets full.
    cluster : Cluster, optional
    options : dict
        Of every `Problem`: precision, optimizer, trainer, margin, calibration.
    """

    describe: Callable[[int], Profile]
    sequence: int
    num_devices: int
    microbatch_size: int = 1
    batch: int = 0
    cluster: Cluster | None = None
    options: dict[str, object] = field(default_factory=dict)
    _profiles: dict[int, Profile] = field(default_factory=dict)
    _evaluators: dict[tuple[int, int], Evaluator] = field(default_factory=dict)
    _known: dict[object, "HeldMemory | PenstockError"] = field(default_factory=dict)

    def rows(self) -> list[MemoryRow]:
        """Return the rows of the strategies that the model and the devices admit."""
        found = []
        for strategy, space in self.strategies():
            held = self.held(space, self.microbatch_size)
            if isinstance(held, HeldMemory):
                sequence = self._longest_sequence(space, held) if self.sequence else None
                size = self._largest_size(space, held)
                change = None if held.fits == FITS else self._cheapest_change(space)
                found.append(MemoryRow(strategy, self.microbatch_size, held, size, sequence, change))
        return found

    def refusals(self) -> list[str]:
        """Return why strategies have no row, each with its reason."""
        found = ((name, self.held(space, self.microbatch_size)) for name, space in self.strategies())
        return [f"{name}: {why}" for name, why in found if isinstance(why, PenstockError)]

    def held(self, space: Space, microbatch_size: int, sequence: int = 0) -> "HeldMemory | PenstockError":
        """Return what a plan of these choices holds, or why there is none."""
        key = (space, microbatch_size, sequence)
        if key not in self._known:
            try:
                self._known[key] = self._simulated(space, microbatch_size, sequence)
            except PenstockError as error:
                self._known[key] = error
        return self._known[key]

    def _simulated(self, space: Space, microbatch_size: int, sequence: int) -> HeldMemory:
        problem = self._problem(space, microbatch_size, sequence)
        key = microbatch_size, sequence
        if key not in self._evaluators:
            self._evaluators[key] = fixed_evaluator(problem)
        evaluator = self._evaluators[key]
        candidate = fixed_candidate(Evaluator(problem, evaluator.atoms, microbatch_size))
        run = evaluator.shortest(candidate)
        uppers, peaks, limits = (
            upper_bytes(evaluator, candidate, run),
            run.times.peak_memory_bytes,
            evaluator.limits(run),
        )
        fullest = max(range(len(peaks)), key=lambda rank: uppers[rank] - limits[rank])
        known = [limit if limit < NO_LIMIT else 0 for limit in limits]
        word = fitting(peaks, uppers, known, problem.memory_margin_bytes)
        terms = _terms_of(evaluator, candidate, run, fullest)
        return HeldMemory(peaks[fullest], uppers[fullest], terms, word, run.step_time_ns)

    def _problem(self, space: Space, microbatch_size: int, sequence: int) -> Problem:
        if sequence not in self._profiles:
            self._profiles[sequence] = self.describe(sequence)
        return Problem(
            self._profiles[sequence],
            self.cluster,
            self.num_devices,
            self._batch_of(microbatch_size),
            microbatch_size,
            schedule="interleaved-1f1b" if (space.chunks or 1) > 1 else "1f1b",
            target="any",
            space=space,
            **self.options,  # type: ignore[arg-type]
        )

    def _batch_of(self, microbatch_size: int) -> int:
        return self.batch or 2 * self.num_devices * microbatch_size

    def strategies(self) -> Iterator[tuple[str, Space]]:
        """Yield strategies with what they fix, the simplest first."""
        count, fixed = self.num_devices, Space(stages=1, tensor=1, data=1, zero=0, recompute="none", offload="none")
        if count == 1:
            yield "single", fixed
            yield "offload", replace(fixed, offload="optimizer")
            return
        yield "data-parallel", replace(fixed, data=count)
        for zero in (1, 2, 3):
            yield f"zero-{zero}", replace(fixed, data=count, zero=zero)
        tensor = _largest_divisor(count, MOST_TENSOR)
        beside = replace(fixed, tensor=tensor, sequence_parallel=True, data=count // tensor, zero=int(count > tensor))
        yield "zero-1+tensor" if count > tensor else "tensor", beside
        stages = _largest_divisor(count, min(8, self._num_blocks))
        if stages > 1:
            piped = replace(fixed, stages=stages, data=count // stages, zero=int(count > stages))
            yield "zero-1+pipeline" if count > stages else "pipeline", piped
        if count > tensor and (both := _largest_divisor(count // tensor, min(8, self._num_blocks))) > 1:
            data = count // tensor // both
            name = "zero-1+tensor+pipeline" if data > 1 else "tensor+pipeline"
            yield name, replace(beside, stages=both, data=data, zero=int(data > 1))
        if experts := self._num_experts:
            yield "zero-1+expert", replace(fixed, data=count, zero=1, expert=gcd(count, experts))

    @property
    def _graph_of_own(self) -> Profile:
        if 0 not in self._profiles:
            self._profiles[0] = self.describe(0)
        return self._profiles[0]

    @property
    def _num_blocks(self) -> int:
        return len(set(filter(None, self._graph_of_own.graph.blocks))) or 1

    @property
    def _num_experts(self) -> int:
        """The experts of a layer that trainers divide; 0 where there are none."""
        works = (operator.work for operator in self._graph_of_own.graph.operators)
        return max((work.experts for work in works if work and work.split == "expert"), default=0)

    def _largest_size(self, space: Space, held: HeldMemory) -> int:
        """Return the largest micro-batch that fits; of a given batch one that divides a replica's part of it."""
        size, of_replica = self.microbatch_size, self.batch // (space.data or 1)
        if held.fits != FITS and size == 1:
            return 0

        def allowed(most: int) -> int:
            if not self.batch:
                return min(most, LARGEST)
            return next((n for n in range(min(most, of_replica), 0, -1) if of_replica % n == 0), 0)

        return self._largest(lambda tried: self.held(space, tried), (size, held), 2 * size, allowed)

    def _longest_sequence(self, space: Space, held: HeldMemory) -> int:
        """Return the longest sequence that fits, at most `LONGEST`."""
        return self._largest(
            lambda tried: self.held(space, self.microbatch_size, tried),
            (self.sequence, held),
            self.sequence // 2,
            lambda most: min(most, LONGEST) // STEP_TOKENS * STEP_TOKENS,
        )

    def _largest(
        self,
        held_at: "Callable[[int], HeldMemory | PenstockError]",
        start: tuple[int, HeldMemory],
        other: int,
        allowed: Callable[[int], int],
    ) -> int:
        """Return the largest allowed size that fits, 0 where none does: by the secant through sizes that were tried."""
        size, held = start
        best, tried = (size if held.fits == FITS else 0), other
        for _ in range(MOST_TRIED):
            found = held_at(tried)
            if not isinstance(found, HeldMemory):
                break
            best = max(best, tried) if found.fits == FITS else best
            each = max(1, (found.upper_bytes - held.upper_bytes) / (tried - size))
            most = allowed(max(0, size + floor(self._room_bytes(held) / each)))
            if most >= tried and found.fits != FITS:
                most = allowed(tried - 1)
            if most <= best or most in (tried, size):
                break
            tried = most
        return best

    def _room_bytes(self, held: HeldMemory) -> int:
        margin = self.options.get("memory_margin_bytes", 0)
        return self.device_bytes - held.upper_bytes - (margin if isinstance(margin, int) else 0)

    @property
    def device_bytes(self) -> int:
        """The least memory of a device."""
        known = self._problem(Space(stages=1, data=1), 1, 0).memory_limits_bytes
        return min(filter(None, known), default=0)

    def _cheapest_change(self, space: Space) -> str:
        """Return the flags of the fastest plan that fits with one change, or full recompute and one; empty: none does.

        The fastest is that which takes least a sample.
        """
        size, again = self.microbatch_size, replace(space, recompute="full")
        for tried in (list(self._changes(space, size)), list(self._changes(again, size))):
            found = [
                (held.step_time_ns / self._batch_of(new), _flags(space, size, changed, new))
                for changed, new in tried
                if isinstance(held := self.held(changed, new), HeldMemory) and held.fits == FITS
            ]
            if found:
                return min(found)[1]
        return ""

    def _changes(self, space: Space, size: int) -> Iterator[tuple[Space, int]]:
        """Yield what differs in one choice, and the size of its micro-batches."""
        data, zero, tensor, stages = space.data or 1, space.zero or 0, space.tensor or 1, space.stages or 1
        if size > 1:
            yield space, 1
        for recompute in ("selective", "full"):
            if space.recompute == "none":
                yield replace(space, recompute=recompute), size
        for deeper in range(zero + 1, (1 if stages > 1 else 3) + 1):
            if data > 1:
                yield replace(space, zero=deeper), size
        if data % 2 == 0:
            halved = replace(space, data=data // 2, zero=zero if data > 2 else 0)
            if tensor < MOST_TENSOR:
                yield replace(halved, tensor=2 * tensor, sequence_parallel=True), size
            if zero < 2 and 2 * stages <= self._num_blocks:
                yield replace(halved, stages=2 * stages), size
        yield replace(space, offload="optimizer"), size


def _terms_of(evaluator: Evaluator, candidate: Candidate, run: Run, rank: int) -> dict[str, dict[str, int]]:
    """Return the terms of a rank's stages by name, and what its messages hold; those of 0 bytes are left out.

    What actions work with, and what is outside of tensors, counts once a rank: of the stage that works with most.
    """
    schedule, once = run.times.structure.schedule, (*evaluator.problem.training.once_a_rank, *OUTSIDE)
    stages = [stage for stage in range(candidate.num_stages) if rank in schedule.graph.ranks[stage]]
    rows = [
        stage_terms(evaluator, candidate, run, stage, most_in_flight(schedule.orders[rank], stage)).items()
        for stage in stages
    ]
    works = max(rows, key=lambda row: sum(row[name].point for name in once))
    found = {
        name: {
            "point_bytes": sum(row[name].point for row in ([works] if name in once else rows)),
            "upper_bytes": sum(row[name].upper for row in ([works] if name in once else rows)),
        }
        for name in works
    }
    messages = max(0, run.times.peak_memory_bytes[rank] - sum(row["point_bytes"] for row in found.values()))
    found["messages"] = {"point_bytes": messages, "upper_bytes": messages}
    return {name: row for name, row in found.items() if row["upper_bytes"]}


def _flags(before: Space, size: int, after: Space, new_size: int) -> str:
    """Write what a plan changes as flags of ``penstock plan``."""
    parts = [f"--microbatch-size {new_size}"] if new_size != size else []
    for each in fields(Space):
        value = getattr(after, each.name)
        if value != getattr(before, each.name):
            name = each.name.replace("_", "-")
            parts.append(f"--{name}" if value is True else f"--{name} {value}")
    return " ".join(parts)


def _largest_divisor(number: int, most: int) -> int:
    return max(n for n in range(1, min(number, most) + 1) if number % n == 0)
