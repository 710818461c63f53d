"""Random jobs with every choice fixed: whatever they are, the plan is right, or the refusal is a user's error."""

from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import PenstockError
from planner.checker import check_plan
from planner.plan.replay import replay
from tests.support.described_models import described
from tests.support.jobs import job

CHOICES = st.fixed_dictionaries(
    {
        "stages": st.sampled_from([1, 2, 4]),
        "chunks": st.sampled_from([None, 2]),
        "data": st.sampled_from([1, 2, 4]),
        "tensor": st.sampled_from([None, 2, 4]),
        "sequence_parallel": st.booleans(),
        "context": st.sampled_from([None, 2]),
        "expert": st.sampled_from([None, 2]),
        "zero": st.sampled_from([None, 0, 1, 2, 3]),
        "recompute": st.sampled_from([None, "none", "selective", "full"]),
        "offload": st.sampled_from([None, "none"]),
        "precision": st.sampled_from(["", "fp16", "bf16", "fp32", "fp8"]),
    }
)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(CHOICES, st.sampled_from(["llama", "gpt2", "mixtral"]), st.sampled_from(["none", "adam"]))
def test_every_job_is_refused_or_planned_right(choices: dict[str, object], model: str, optimizer: str) -> None:
    devices = prod(int(str(choices[name] or 1)) for name in ("stages", "data", "tensor", "context"))
    try:
        plan = job(model, devices, 8, optimizer=optimizer, **choices)
    except PenstockError:
        return
    assert check_plan(plan, described(model).graph) == ()
    timeline = replay(plan)
    assert timeline.step_time_ns == plan.prediction.step_time_ns >= (plan.search.lower_bound_ns or 0)
    prediction = plan.prediction
    rows = zip(prediction.peak_memory_bytes, prediction.peak_memory_upper_bytes, strict=True)
    assert all(peak <= upper for peak, upper in rows)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.sampled_from([1, 2, 3]), st.sampled_from(["llama", "mixtral"]))
def test_more_replicas_never_raise_what_a_rank_holds_of_sharded_states(zero: int, model: str) -> None:
    held = []
    for data in (2, 4, 8):
        terms = dict(job(model, data, 8, data=data, zero=zero, optimizer="adam").stages[0].cost.memory_terms)
        held.append(sum(terms[name] for name in ("parameters", "gradients", "optimizer", "master_weights")))
    assert held == sorted(held, reverse=True)
    assert held[0] > held[-1]
