"""What a plan of a measured job promises: priced and simulated as every plan is.

Profiles, which many jobs of one shape share, are described once. Leaves out how predictions are judged
(`planner.measured.prediction_errors`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from costmodel.calibration import Calibration, published
from costmodel.errors import PenstockError
from costmodel.model.profile import Profile
from costmodel.stages.costs import Amount
from costmodel.stages.strategies.memory import CONTEXT_BYTES, KINDS
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluator, Run
from planner.candidate.fixed import fixed_candidate, fixed_evaluator
from planner.candidate.make import expected_ns
from planner.candidate.price import compact
from planner.candidate.upper_memory import upper_bytes
from planner.measured.job import MeasuredJob
from planner.measured.terms import JobTerms, terms_of
from planner.plan.fitting import fitting


class MeasuredFigures(Protocol):
    """What was measured of a job, 0 for what was not, and with which others it is compared (as of `MeasuredJob`)."""

    @property
    def step_ns(self) -> int:
        """The step."""

    @property
    def peak_bytes(self) -> int:
        """Of one rank."""

    @property
    def forward_ns(self) -> int:
        """Of one stage alone; so is `backward_ns`."""

    @property
    def backward_ns(self) -> int:
        """With what runs again."""

    @property
    def group(self) -> str:
        """Jobs among which a choice is made."""

    @property
    def ranked_with(self) -> str:
        """Jobs whose rates are compared."""

    def rate(self, step_ns: int) -> float:
        """Work in a nanosecond, of one device."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A job with what its plan promises, or why it has none.

    Peak and upper bound are of the rank that was measured, in what was counted there; `fits` is the word for all of the
    device's memory. Forward and backward are of the stage that was, without
    messages.
    """

    job: MeasuredFigures
    step_ns: int = 0
    peak_bytes: int = 0
    upper_bytes: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    why_not: str = ""
    interval_ns: tuple[int, int] | None = None
    fits: str = ""

    @property
    def error(self) -> float:
        """Of the step time, relative."""
        return self.step_ns / self.job.step_ns - 1

    @property
    def memory_error(self) -> float:
        """Of the fullest rank's peak, relative."""
        return self.peak_bytes / self.job.peak_bytes - 1


class Predictor:
    """Predicts jobs with the constants of a calibration."""

    def __init__(self, calibration: Calibration | None = None) -> None:
        self._calibration = calibration or published()
        self._profiles: dict[object, Profile] = {}

    def all(self, jobs: Iterable[MeasuredJob]) -> list[Predicted]:
        """Predict jobs; those that cannot be say why."""
        return [self._one(job) for job in jobs]

    def _one(self, job: MeasuredJob) -> Predicted:
        try:
            return self.of(job)
        except PenstockError as error:
            return Predicted(job, why_not=str(error))

    def terms(self, job: MeasuredJob) -> JobTerms | None:
        """Return what a job's price is made of; None for a job that cannot be predicted."""
        try:
            return terms_of(*self._simulated(job))
        except PenstockError:
            return None

    def _simulated(self, job: MeasuredJob) -> tuple[Evaluator, Candidate, Run]:
        evaluator = fixed_evaluator(job.problem(self._profile(job), self._calibration))
        candidate = fixed_candidate(evaluator, job.layers)
        return evaluator, candidate, evaluator.simulate(candidate)

    def of(self, job: MeasuredJob) -> Predicted:
        """Predict one job.

        Raises
        ------
        PenstockError
            When it cannot be described, priced or ordered.
        """
        evaluator, candidate, run = self._simulated(job)
        upper = max(upper_bytes(evaluator, candidate, run, job.memory_kind)) if job.peak_bytes else 0
        middle = candidate.num_stages // 2
        place, operators = candidate.places[middle], compact(run.priced.operators[middle])
        stage = evaluator.pricer.models(place)[0].stage(operators, place.config, place.ranks)
        backward_ns = sum(map(_mean, (stage.backward_input_ns, stage.backward_weight_ns, stage.recompute_ns)))
        beyond = evaluator.problem.training.reserved * (job.memory_kind != KINDS[0])
        peak = round(max(run.times.peak_memory_bytes) * (1 + beyond)) + CONTEXT_BYTES * (job.memory_kind == KINDS[-1])
        step_ns = run.times.step_time_ns
        expected = expected_ns(evaluator.problem, step_ns)
        word = fitting(run.times.peak_memory_bytes, upper_bytes(evaluator, candidate, run), evaluator.limits(run))
        return Predicted(
            job, step_ns, peak, upper, _mean(stage.forward_ns), backward_ns, interval_ns=expected, fits=word
        )

    def _profile(self, job: MeasuredJob) -> Profile:
        key = job.model, job.device, job.precision, job.sequence, job.microbatch_size, job.lora_rank
        if key not in self._profiles:
            self._profiles[key] = job.profile(self._calibration)
        return self._profiles[key]


def _mean(amount: Amount) -> int:
    return amount if isinstance(amount, int) else round(fmean(amount))
