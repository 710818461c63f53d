"""Samples of unlike lengths: the histogram's file, what actions cost then, and what packing and sorting gain."""

import json
from pathlib import Path

import pytest

from costmodel.errors import InvalidInput
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import write_profile
from costmodel.stages.costs import largest
from planner.candidate.length_costs import LengthCosts
from planner.commands import main
from planner.front import make_plan
from planner.plan import Plan
from planner.question.effort import Effort
from planner.question.lengths import Lengths, read_lengths
from planner.question.problem import Problem
from planner.question.space import Space
from planner.report.summary.batch_lengths import AS_THEY_COME, PACKED, BatchLengths, in_bins
from tests.support.described_models import described

STEPS = range(1, 33)
HISTOGRAMS = {
    "uniform": Lengths(tuple((16 * i, 100) for i in STEPS)),
    "zipf": Lengths(tuple((16 * i, 10_000 // i) for i in STEPS)),
    "two peaks": Lengths(((32, 300), (48, 100), (448, 50), (512, 100))),
}


@pytest.fixture(scope="module", name="planned")
def plan_of_two_stages() -> tuple[Problem, Plan]:
    cluster = Cluster(
        (DeviceType("a100", 80 * 2**30, "cuda", "a100-sxm-80"),),
        (Host("a100", 2),),
        (LinkGroup("nvlink", 0, 200.0, 1000),),
    )
    problem = Problem(
        described("llama", "a100-sxm-80"), cluster, 2, 128, microbatch_size=2, schedule="1f1b", target="any",
        space=Space(stages=2, chunks=1, data=1, tensor=1), effort=Effort(0.0), habits={"graphs": True},
    )  # fmt: skip
    return problem, make_plan(problem).plan


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_packing_idles_at_most_5_percent_where_micro_batches_as_they_come_idle_15(planned, name: str) -> None:
    found = BatchLengths(*planned, HISTOGRAMS[name])
    idle = {way: figures.to_json()["idle"] for way, figures in found.ways.items()}
    assert idle[AS_THEY_COME] >= 0.15
    assert idle[PACKED] <= 0.05
    assert found.best == PACKED


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_no_way_is_below_the_bound_of_its_batch(planned, name: str) -> None:
    found = BatchLengths(*planned, HISTOGRAMS[name], seed=3)
    for index, bound_ns in enumerate(found.bounds_ns):
        assert 0 < bound_ns <= min(figures.steps_ns[index] for figures in found.ways.values())


def test_samples_as_long_as_planned_cost_what_the_plan_says(planned) -> None:
    problem, plan = planned
    costs = LengthCosts(problem, plan)
    size = plan.batch.microbatch_size
    same = costs.of([[costs.tokens] * size] * plan.batch.num_microbatches)
    for stage, own in zip(same.stages, plan.costs().stages, strict=True):
        for name in ("forward_ns", "backward_input_ns", "backward_weight_ns", "activation_bytes"):
            assert set(getattr(stage, name)) == {largest(getattr(own, name))}


def test_attention_grows_with_the_square_of_a_samples_length_and_all_else_with_it(planned) -> None:
    problem, plan = planned
    costs = LengthCosts(problem, plan)
    half = costs.of([[costs.tokens // 2] * plan.batch.microbatch_size] * plan.batch.num_microbatches)
    for stage, own, (share, _) in zip(half.stages, plan.costs().stages, costs.attention, strict=True):
        assert 0 < share < 1
        assert stage.forward_ns[0] == pytest.approx(largest(own.forward_ns) * ((1 - share) / 2 + share / 4), abs=1)
        assert stage.backward_weight_ns[0] == pytest.approx(largest(own.backward_weight_ns) / 2, abs=1)


def test_packed_micro_batches_hold_each_sample_once_and_differ_by_one_sample_at_most() -> None:
    samples = HISTOGRAMS["two peaks"].batches(1, 64, 1)[0]
    bins = in_bins(samples, 8, float)
    assert sorted(tokens for row in bins for tokens in row) == sorted(samples)
    assert max(map(sum, bins)) - min(map(sum, bins)) <= max(samples)
    assert all(bins)


def test_the_same_seed_draws_the_same_batches() -> None:
    lengths = HISTOGRAMS["zipf"]
    assert lengths.batches(2, 16, 5) == lengths.batches(2, 16, 5) != lengths.batches(2, 16, 6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: found ''; the header 'tokens,count' is needed"),
        ("count,tokens\n1,2\n", "line 1: found 'count,tokens'"),
        ("tokens,count\n0,2\n", "line 2: found '0,2'; tokens from 1"),
        ("tokens,count\n8,2\n8,x\n", "line 3: found '8,x'"),
        ("tokens,count\n8,2,3\n", "line 2: found '8,2,3'"),
        ("tokens,count\n8,2\n8,3\n", "8 tokens are given twice"),
        ("tokens,count\n8,0\n", "no samples; at least one row"),
        (f"tokens,count\n{10**30},1\n", "line 2: found"),
    ],
)
def test_a_histogram_that_is_wrong_is_refused_by_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text(text)
    with pytest.raises(InvalidInput, match=r"lengths\.csv: ") as error:
        read_lengths(tmp_path / "lengths.csv")
    assert said in str(error.value)


def test_plan_says_what_lengths_do(tmp_path: Path, capsys) -> None:
    write_profile(tmp_path / "profile.json", described("llama", "a100-sxm-80"))
    (tmp_path / "lengths.csv").write_text("tokens,count\n128,3\n512,1\n")
    line = ["plan", str(tmp_path / "profile.json"), "--devices", "2", "--batch", "16", "--time-limit", "0"]
    line += ["-o", str(tmp_path / "plan.json"), "--lengths", str(tmp_path / "lengths.csv")]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["lengths"]
    assert found["tokens_mean"] == 224
    assert set(found["ways"]) == {"as they come", "sorted", "packed"}
    assert found["step_time_ns"] == min(way["step_time_ns"] for way in found["ways"].values())
    assert found["lower_bound_ns"] <= found["step_time_ns"]
    assert main(line) == 0
    assert "samples of 224 tokens in the mean" in capsys.readouterr().out
