"""`Pipeline` inside the user's own loop: losses, clipping, checkpoints under another plan, inputs needed.

And torch's own pipelining on the same two ranks, whose traces `import kineto` reads.
"""

import json
import re

import pytest
import torch

from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.stages.config import StageConfig
from examples.train import train_alone, train_plan
from planner.commands import main
from planner.plan import write_plan
from simulator.torch_csv import read_torch_csv
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.kineto_jobs import traced
from tests.support.ranks.rank_pool import RankPool
from tests.support.repository import ROOT


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(2)
    yield pool
    pool.close()


TWO = {"num_stages": 2, "num_microbatches": 4}


@pytest.mark.parametrize("model", ["two_branch", "normed"])
@pytest.mark.parametrize("schedule", ["graph-1f1b", "split"])
def test_a_training_loop_has_the_losses_of_one_process(ranks, model, schedule):
    expected = jobs.plain_losses(model, 5, **TWO)
    found = ranks.run(jobs.train, model=model, num_steps=5, schedule=schedule, **TWO)
    assert found[0]["losses"] == pytest.approx(expected, rel=1e-6)
    assert found[0]["losses"] == found[1]["losses"]


def test_gradients_are_clipped_by_the_norm_over_all_ranks(ranks):
    expected = jobs.plain_losses("tied_gpt", 4, max_norm=0.1, **TWO)
    found = ranks.run(jobs.train, model="tied_gpt", num_steps=4, max_norm=0.1, **TWO)
    assert found[0]["losses"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", ["two_branch", "normed", "tied_gpt"])
def test_what_one_plan_saved_resumes_under_another(ranks, model):
    through = ranks.run(jobs.train, model=model, num_steps=6, **TWO)[0]["losses"]
    saved = ranks.run(jobs.train, model=model, num_steps=6, stop_step=3, **TWO)[0]["state"]
    other = {"num_stages": 3, "ranks": [(0,), (1,), (0,)], "schedule": "split", "num_microbatches": 4}
    resumed = ranks.run(jobs.train, model=model, num_steps=6, first_step=3, state=saved, **other)
    assert resumed[0]["losses"] == pytest.approx(through[3:], rel=1e-5)


def test_replicas_resume_too(ranks):
    through = ranks.run(jobs.train, model="two_branch", num_steps=6, **TWO)[0]["losses"]
    saved = ranks.run(jobs.train, model="two_branch", num_steps=6, stop_step=3, **TWO)[0]["state"]
    other = {"num_stages": 2, "ranks": [(0, 1), (1,)], "num_microbatches": 4}
    resumed = ranks.run(jobs.train, model="two_branch", num_steps=6, first_step=3, state=saved, **other)
    assert resumed[0]["losses"] == pytest.approx(through[3:], rel=1e-5)


def test_the_saved_state_is_the_plain_models(ranks):
    answer = ranks.run(jobs.train, model="normed", num_steps=2, **TWO)
    state, plain = answer[0]["state"]["model"], jobs.captured("normed").model.module
    assert list(state) == list(plain.state_dict())
    assert {name: value.shape for name, value in state.items()} == {n: v.shape for n, v in plain.state_dict().items()}
    assert int(state["1.num_batches_tracked"]) == int(state["4.num_batches_tracked"]) == 2 * 4
    assert answer[1]["state"]["model"] == {}
    plain.load_state_dict(state)


def test_the_plain_models_state_comes_back_whole(ranks):
    plain = jobs.captured("scaled").model.module.state_dict()
    state = {name: torch.randn_like(value) for name, value in plain.items()}
    again = ranks.run(jobs.reloaded, model="scaled", state=state, **TWO)[0]
    assert list(again) == list(state)
    assert all(torch.equal(again[name], state[name]) for name in state)


def test_a_recomputed_stage_leaves_batch_statistics_as_one_forward_does(ranks):
    plain = ranks.run(jobs.train, model="normed", num_steps=2, **TWO)[0]["state"]["model"]
    again = ranks.run(jobs.train, model="normed", num_steps=2, schedule="recompute", **TWO)[0]["state"]["model"]
    assert all(torch.equal(again[name], value) for name, value in plain.items())


def test_a_pipeline_without_an_example_is_made_by_its_first_step(ranks):
    expected = ranks.run(jobs.train, model="two_branch", num_steps=2, **TWO)[0]["losses"]
    found = ranks.run(jobs.train, model="two_branch", num_steps=2, example=False, **TWO)
    assert found[0]["losses"] == expected


def test_a_rank_is_told_which_inputs_and_samples_it_reads(ranks):
    answers = ranks.run(jobs.train, model="two_branch", num_steps=1, **TWO)
    assert answers[0]["needed"] == {0: ((0, 8),)}
    assert answers[1]["needed"] == {1: ((0, 8),), "targets": ((0, 8),)}
    replicas = ranks.run(jobs.train, model="two_branch", num_steps=1, num_stages=1, ranks=[(0, 1)], num_microbatches=4)
    halves = [((0, 2), (4, 6)), ((2, 4), (6, 8))]
    assert [answer["needed"] for answer in replicas] == [{0: h, 1: h, "targets": h} for h in halves]


def example_plan(path, num_stages, **options):
    source = capture(load_model("examples.train:build", 4))
    groups = in_equal_runs(source.operators, num_stages)
    write_plan(path, plan_by_hand(source, groups, num_microbatches=4, microbatch_size=8, optimizer="adam", **options))
    return str(path)


def test_the_example_job_has_the_curve_of_one_process_also_when_it_goes_on_under_another_plan(ranks, tmp_path):
    expected = train_alone(22)
    first, second = example_plan(tmp_path / "one.json", 2), tmp_path / "two.json"
    divided = [StageConfig(data=2, zero=1), StageConfig()]
    second = example_plan(second, 2, ranks=[(0, 1), (1,)], configs=divided)
    folder = str(tmp_path / "job")
    found = ranks.run(train_plan, plan=first, num_steps=20, folder=folder)
    assert found[0] == found[1] == pytest.approx(expected[:20], rel=1e-4)
    found = ranks.run(train_plan, plan=second, num_steps=22, folder=folder)
    assert len(found[0]) == 2
    assert found[0] == found[1] == pytest.approx(expected[20:], rel=1e-4)


def test_the_guides_loop_is_the_examples():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(), re.DOTALL)
    assert any(
        block.strip() in (ROOT / "examples" / "train.py").read_text() for block in blocks if "def train_plan" in block
    )


ORDERS_OF_TORCH = {
    "gpipe": ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"],
    "1f1b": ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"],
    "interleaved-1f1b": ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"],
}


@pytest.mark.parametrize("schedule", ORDERS_OF_TORCH)
def test_a_run_of_torchs_pipelining_is_read_with_its_orders_and_modules(ranks, tmp_path, capsys, schedule):
    stacks = schedule == "1f1b"  # its actions carry no marks
    files = ranks.run(
        traced, schedule=schedule, folder=str(tmp_path), microbatches=2, num_steps=2, stacks=stacks, width=32
    )
    orders, profile = tmp_path / "orders.csv", tmp_path / "profile.json"
    words = ["import", "kineto", *files, "-o", str(profile), "--orders-output", str(orders), "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [" ".join(map(str, order)) for order in read_torch_csv(orders).orders] == ORDERS_OF_TORCH[schedule]
    assert (answer["steps"], answer["microbatches"]) == (2, 2)
    assert min(min(row["F_ns"], row["B_ns"]) for row in answer["stages"]) > 0
    assert answer["simulated_step_time_ns"] > sum(answer["stages"][0][key] for key in ("F_ns", "B_ns"))
    assert answer["operators"] == (28 if stacks else len(answer["stages"]) + 1)
