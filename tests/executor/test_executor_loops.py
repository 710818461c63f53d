"""A real job's loop around a pipeline gives the plain loop's losses, whatever the cut; what cannot be is refused."""

import json
import math
from dataclasses import replace

import pytest
import torch

from costmodel.capture.batches import split_batch
from costmodel.errors import DoesNotMatch, InvalidInput, UsageError
from executor import Pipeline
from executor.model.tensor_file import TensorFile
from executor.plan_match.devices import carrier
from planner.plan import Training
from tests.support.loops import loop_jobs as loops
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool
from tests.support.safetensors_file import write_safetensors


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(4)
    yield pool
    pool.close()


THREE = {"ranks": [(0, 1), (2,), (3, 1)]}
CUTS = [
    {"num_stages": 4},
    {"num_stages": 1, "ranks": [(0, 1, 2, 3)]},
    {"num_stages": 3, "ranks": [(0, 1), (2,), (3, 1)], "schedule": "split"},
    {"num_stages": 4, "schedule": "recompute", "relay": True},
    {"num_stages": 2, "ranks": [(0, 3), (1, 2)], "schedule": "gpipe"},
]


@pytest.mark.parametrize("model", ["dropped", "dropped_plainly"])
def test_dropout_gives_one_loss_curve_under_any_cut_and_number_of_replicas(ranks, model):
    curves = [ranks.run(loops.drops, model=model, num_steps=6, **cut)[0] for cut in CUTS]
    for losses, error, evaluation in curves:
        assert losses == pytest.approx(curves[0][0], rel=1e-9)
        assert evaluation == pytest.approx(curves[0][2], rel=1e-9)
        assert error <= 1e-9
    assert len(set(curves[0][0])) == 6


def test_what_draws_in_a_way_of_its_own_is_not_evaluated_otherwise_without_a_word(ranks):
    said = ranks.run(evaluated_noise)
    assert all("draws random numbers" in words for words in said), said


def evaluated_noise():
    plan = jobs.make_plan("dropped", num_stages=4)
    source = jobs.captured("dropped")
    with Pipeline(plan, source) as pipe:
        return loops.outcome(pipe.evaluate)


def test_stages_that_draw_take_one_microbatch_at_a_time():
    plan = jobs.make_plan("dropped", num_stages=1, multiples=(2,))
    with pytest.raises(DoesNotMatch, match="draws random numbers and takes 2 micro-batches"):
        Pipeline(plan, jobs.captured("dropped"))


@pytest.mark.parametrize("model", loops.JOBS)
def test_a_job_with_groups_warm_up_clipping_evaluation_and_checkpoints_has_the_plain_loops_losses(
    ranks, tmp_path, model
):
    if model == "exact_llama":
        pytest.importorskip("transformers", reason="transformers is not installed: its models are not tested")
    assert loops.job_failures(ranks, model, 12, str(tmp_path)) == []


@pytest.mark.parametrize("model", ["two_branch", "masked", "tied_gpt"])
def test_gradients_accumulate_over_calls_when_asked_and_start_anew_behind_them(ranks, model):
    options = {"num_stages": 3, **THREE}
    found = ranks.run(loops.accumulated, model=model, calls=3, **options)
    plan = jobs.make_plan(model, **options)
    batches = jobs.batches(model, plan.batch.global_size, 3)
    expected = {}
    for batch in batches:
        for name, gradient in plain_gradients(batch, plan.batch.num_microbatches).items():
            expected[name] = expected.get(name, 0) + gradient
    for gradients, _ in found:
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("plan", [{}, {"optimizer": "adam"}])
def test_what_several_calls_add_up_is_clipped_once_and_gone_when_an_optimizer_clears_it(ranks, plan):
    size = 8
    losses = ranks.run(loops.in_two_calls, model="two_branch", size=size, num_stages=3, **THREE, **plan)[0]
    assert losses == pytest.approx(loops.plain_in_two_calls("two_branch", size, 4), rel=1e-5)


@pytest.mark.parametrize("plan", [{}, {"optimizer": "adam"}])
def test_replicas_leave_a_parameter_without_a_gradient_to_itself(ranks, plan):
    placed = {"num_stages": 1, "ranks": [(0, 1, 2, 3)], **plan}
    losses = ranks.run(loops.in_two_calls, model="stopped", size=8, **placed)[0]
    assert losses == pytest.approx(loops.plain_in_two_calls("stopped", 8, 4), rel=1e-6)


def test_the_loss_of_samples_that_weigh_nothing_is_no_number_and_ends_nothing(ranks):
    for step, evaluation, after in ranks.run(loops.without_weight, num_stages=3, **THREE):
        assert math.isnan(step)
        assert math.isnan(evaluation)
        assert math.isfinite(after)


def plain_gradients(batch, count):
    batch.module.zero_grad()
    weights = 0.0
    for index in range(count):
        part = split_batch(batch, index, count)
        loss, weight = part.evaluate(part.module(*part.args, **part.kwargs), part.targets)
        weights += 0.0 if weight is None else float(weight)
        (loss if weight is not None else loss / count).backward()
    return {n: p.grad.clone() / (weights or 1.0) for n, p in batch.module.named_parameters() if p.grad is not None}


def test_replicas_agree_on_batch_norms_averages_and_count_all_microbatches(ranks):
    answers = ranks.run(loops.averages, num_stages=2, ranks=[(0, 1), (2, 3)], num_microbatches=4)
    for one, other in ((0, 1), (2, 3)):
        assert answers[one][0].keys() == answers[other][0].keys()
        assert all(torch.equal(value, answers[other][0][name]) for name, value in answers[one][0].items())
    counts = [int(v) for held, _ in answers for name, v in held.items() if name.endswith("num_batches_tracked")]
    assert set(counts) == {3 * 4}
    assert len({loss for _, loss in answers}) == 1


def test_pipelines_run_inside_a_mesh_of_the_programs_own(ranks):
    found = ranks.run(loops.inside_a_mesh, model="two_branch", num_steps=4)
    expected = jobs.plain_losses("two_branch", 4, num_stages=2, num_microbatches=4)
    for losses, _, num_ranks in found:
        assert losses == pytest.approx(expected, rel=1e-5)
        assert num_ranks == 2
    assert [rank for _, rank, _ in found] == [0, 1, 0, 1]


def test_ranks_with_a_gpu_each_use_nccl_and_those_that_share_one_go_through_the_host():
    assert carrier(["host a, gpu 1", "host b, gpu 1"]) == "nccl"
    assert carrier(["host a, gpu 1", "host a, gpu 1"]) == "gloo"
    assert carrier(["", ""]) == "gloo"


META = [
    ("small_gpt", {"num_stages": 3, "ranks": [(0, 1), (2,), (3,)]}),
    ("tied_gpt", {"num_stages": 4}),
    ("normed", {"num_stages": 4}),
    ("scaled", {"num_stages": 3, "ranks": [(0,), (1,), (2, 3)]}),
]


@pytest.mark.parametrize(("model", "options"), META, ids=[row[0] for row in META])
def test_a_model_on_meta_gets_the_values_of_each_ranks_part_and_each_is_asked_for_once(ranks, model, options):
    plain = ranks.run(loops.on_meta, model=model, path=None, **options)
    names = [name for _, _, asked in plain for name in asked]
    assert len(names) == len(set(names))
    assert max(error for error, _, _ in plain) <= 1e-6
    whole = sum(p.nbytes for p in jobs.captured(model).model.module.parameters())
    assert all(sum(held.values()) < whole for _, held, _ in plain)


def test_a_model_on_meta_reads_a_safetensors_file(ranks, tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, jobs.captured("small_gpt").model.module.state_dict())
    found = ranks.run(loops.on_meta, model="small_gpt", path=str(path), num_stages=4)
    assert max(error for error, _, _ in found) <= 1e-6


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 8, (2**60).to_bytes(8, "little") + b"{}", b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7 + b"{"],
    ids=["empty", "no header", "a header longer than the file", "a list", "half an object"],
)
def test_a_broken_safetensors_file_is_refused(tmp_path, data):
    (tmp_path / "broken").write_bytes(data)
    with pytest.raises(InvalidInput, match="safetensors"):
        TensorFile(tmp_path / "broken")


def test_an_entry_outside_of_a_safetensors_file_or_of_another_shape_is_refused(tmp_path):
    text = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (tmp_path / "short").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 8)
    file = TensorFile(tmp_path / "short")
    with pytest.raises(InvalidInput, match="outside"):
        file.read(["w"], torch.empty(4))
    (tmp_path / "whole").write_bytes((tmp_path / "short").read_bytes() + b"\0" * 8)
    file = TensorFile(tmp_path / "whole")
    assert file.read(["w"], torch.empty(4)).tolist() == [0.0] * 4
    with pytest.raises(DoesNotMatch, match="shape"):
        file.read(["w"], torch.empty(5))
    with pytest.raises(DoesNotMatch, match="holds no tensor 'v'"):
        file.read(["v"], torch.empty(4))


ONE = {"num_stages": 2, "ranks": [(0,), (0,)], "num_microbatches": 4}


@pytest.mark.parametrize(
    ("training", "autocast", "words"),
    [
        (Training("float64", "", "none"), None, "made for float64, and the model has parameters of float32"),
        (Training("float16", "", "none"), None, "float16: its losses would have to be scaled"),
        (Training("float32", "float16", "none"), None, "float16: its losses would have to be scaled"),
        (Training("float32", "", "none"), torch.bfloat16, "without autocast, and the model is to train under autocast"),
    ],
)
def test_another_precision_than_the_plans_is_refused_by_name(training, autocast, words):
    plan = replace(jobs.make_plan("two_branch", **ONE), training=training)
    source = jobs.whole_batch("two_branch", plan)
    with pytest.raises(DoesNotMatch, match=words):
        Pipeline(plan, replace(source, autocast=autocast))


def test_the_plans_autocast_is_applied():
    plan = jobs.make_plan("two_branch", **ONE)
    source = jobs.captured("two_branch")
    plain = Pipeline(plan, source).step()
    cast = Pipeline(replace(plan, training=Training("float32", "bfloat16", "none")), source).step()
    assert plain != cast == pytest.approx(plain, rel=2e-2)


def test_a_plan_with_opt_is_refused_without_an_optimizer_and_the_other_way_round():
    source = jobs.captured("two_branch")
    with pytest.raises(UsageError, match=r"OPT, priced as adam\) and none is given"):
        Pipeline(jobs.make_plan("two_branch", optimizer="adam", **ONE), source)
    with pytest.raises(UsageError, match="the plan has no OPT"):
        Pipeline(jobs.make_plan("two_branch", **ONE), source, optimizer=loops.adamw)
