"""Laws of prices over the catalogue: what a device, a link or a precision may never do to a step."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.architectures.command import make
from costmodel.calibration import Calibration
from costmodel.machines import catalogue
from costmodel.machines.catalogue import PRECISIONS
from costmodel.model.profile import Profile
from planner.candidate.evaluate import Evaluator
from planner.candidate.fixed import fixed_candidate, fixed_evaluator
from planner.question.problem import Problem
from planner.question.space import Space

FEW = settings(max_examples=25, deadline=None)
MODELS = ("llama3-8b", "mixtral-8x7b")
SPACES = (
    Space(stages=1, data=8, tensor=1, context=1, zero=0, recompute="none"),
    Space(stages=1, data=8, tensor=1, context=1, zero=3, recompute="none"),
    Space(stages=2, data=2, tensor=2, context=1, zero=1, recompute="full"),
    Space(stages=1, data=1, tensor=8, context=1, recompute="none", sequence_parallel=True),
)
UNCALIBRATED = Calibration({})

devices = st.sampled_from([row.id for row in catalogue.devices()])
spaces = st.sampled_from(SPACES)
models = st.sampled_from(MODELS)


@cache
def described(model: str, device: str, precision: str) -> Profile:
    return make(model, device, (1,), 2048, precision)[0]


def price(problem: Problem) -> tuple[int, int]:
    """Return step time and largest peak of a problem with every choice fixed."""
    evaluator: Evaluator = fixed_evaluator(problem)
    times = evaluator.simulate(fixed_candidate(evaluator)).times
    return times.step_time_ns, max(times.peak_memory_bytes)


def problem(profile: Profile, space: Space, precision: str = "", num_devices: int = 8) -> Problem:
    return Problem(
        profile, None, num_devices, 16, microbatch_size=1, schedule="1f1b", space=space, precision=precision,
        target="any", trainer="megatron",
    )  # fmt: skip


@FEW
@given(models, devices, st.sampled_from(PRECISIONS), st.sampled_from(PRECISIONS), spaces)
def test_a_model_described_in_a_precision_costs_what_planning_it_in_that_precision_does(
    model: str, device: str, described_in: str, asked: str, space: Space
) -> None:
    if not {described_in, asked} <= set(catalogue.device(device).tflops):
        return
    own, other = (described(model, device, precision) for precision in (asked, described_in))
    assert price(problem(own, space)) == price(problem(other, space, asked)) == price(problem(own, space, asked))


@pytest.mark.parametrize("precision", ["tf32", "fp8"])
def test_a_precision_that_no_dtype_names_is_priced_once(precision: str) -> None:
    """`model --precision tf32`, then `plan`, took the ratio of tf32 to fp32 twice: a share of peak of 1.48."""
    profile = described("llama3-8b", "h100-sxm-80", precision)
    flop = 3 * 16 * sum(operator.flop for operator in profile.graph.operators)
    peak = 8 * catalogue.device("h100-sxm-80").tflops[precision] * 1000
    assert profile.precision == precision
    assert price(problem(profile, SPACES[1]))[0] > flop / peak
