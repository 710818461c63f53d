"""What the fullest rank of a plan with all choices fixed holds: priced and simulated as `penstock plan` does."""

from collections.abc import Callable
from dataclasses import dataclass, field

from costmodel.errors import PenstockError
from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from costmodel.stages.strategies.memory import OUTSIDE
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluator, Run
from planner.candidate.fit import NO_LIMIT
from planner.candidate.fixed import fixed_candidate, fixed_evaluator
from planner.candidate.upper_memory import most_in_flight, stage_terms, upper_bytes
from planner.graph.atoms import Atoms
from planner.plan.fitting import fitting
from planner.question.problem import Problem
from planner.question.space import Space


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The fullest rank of a plan: estimate and upper bound, terms by name, the word, and the step."""

    point_bytes: int
    upper_bytes: int
    terms: dict[str, dict[str, int]]
    fits: str
    step_time_ns: int


@dataclass
class FixedPlans:
    """Plans of one model on one number of devices, each evaluated once.

    Parameters
    ----------
    describe : callable
        Returns the profile at a sequence length, one object each; 0 asks for the model's own.
    num_devices : int
    batch : int
        Samples of a step; 0 for two micro-batches a device, with which every pipeline gets full.
    cluster : Cluster, optional
    options : dict
        Of every `Problem`: precision, optimizer, trainer, margin, calibration.
    """

    describe: Callable[[int], Profile]
    num_devices: int
    batch: int = 0
    cluster: Cluster | None = None
    options: dict[str, object] = field(default_factory=dict)
    _evaluators: dict[tuple[int, int], Evaluator] = field(default_factory=dict)
    _known: dict[object, HeldMemory | PenstockError] = field(default_factory=dict)

    def held(self, space: Space, microbatch_size: int, sequence: int = 0) -> HeldMemory | PenstockError:
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
        evaluator = self._evaluator(problem, microbatch_size, sequence)
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

    def _evaluator(self, problem: Problem, microbatch_size: int, sequence: int) -> Evaluator:
        """Return what prices plans of these sizes; the pieces of a model are the same at all of them."""
        key = microbatch_size, sequence
        if key not in self._evaluators:
            known = next(iter(self._evaluators.values()), None)
            self._evaluators[key] = (
                Evaluator(problem, Atoms(problem.profile.graph, known.atoms.members), microbatch_size)
                if known
                else fixed_evaluator(problem)
            )
        return self._evaluators[key]

    def _problem(self, space: Space, microbatch_size: int, sequence: int) -> Problem:
        return Problem(
            self.describe(sequence),
            self.cluster,
            self.num_devices,
            self.batch_of(microbatch_size),
            microbatch_size,
            schedule="interleaved-1f1b" if (space.chunks or 1) > 1 else "1f1b",
            target="any",
            space=space,
            **self.options,  # type: ignore[arg-type]
        )

    def batch_of(self, microbatch_size: int) -> int:
        """Return the samples of a step in micro-batches of this size."""
        return self.batch or 2 * self.num_devices * microbatch_size

    @property
    def device_bytes(self) -> int:
        """The least memory of a device."""
        known = self._problem(Space(stages=1, data=1), 1, 0).memory_limits_bytes
        return min(filter(None, known), default=0)

    @property
    def num_blocks(self) -> int:
        """Blocks that stages are made of; 1 where the model has none."""
        return len(set(filter(None, self.describe(0).graph.blocks))) or 1

    @property
    def num_experts(self) -> int:
        """The experts of a layer that trainers divide; 0 where there are none."""
        works = (operator.work for operator in self.describe(0).graph.operators)
        return max((work.experts for work in works if work and work.split == "expert"), default=0)


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
