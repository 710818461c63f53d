"""A rank holds the parameters and buffers that its stages read, and nothing else of the model."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from costmodel.capture.attention import NAME
from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.capture.parts import extract
from costmodel.capture.shapes import fetch
from costmodel.errors import DoesNotMatch
from executor import Pipeline
from executor.model.capturing import aimed_at, capture_surely
from executor.model.holding import tensors_read
from executor.observe.check import compare
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(2)
    yield pool
    pool.close()


TWO = {"num_stages": 2, "num_microbatches": 4}
ALONE = {"num_stages": 2, "ranks": [(0,), (0,)], "num_microbatches": 4}


def named_tensors(module):
    return dict([*module.named_parameters(), *module.named_buffers()])


def holdings(model, **options):
    """Bytes that a rank holds by name once its pipeline stands, and names whose first memory nobody refers to."""
    plan = jobs.make_plan(model, **options)
    source = jobs.whole_batch(model, plan)
    first = {name: StorageWeakRef(t.untyped_storage()) for name, t in named_tensors(source.module).items()}
    with Pipeline(plan, source):
        held = {name: t.untyped_storage().nbytes() for name, t in named_tensors(source.module).items()}
        return held, {name for name, storage in first.items() if storage.expired()}


def planned_holdings(model, rank, **options):
    """Bytes by name of the parameters that the plan's stages of a rank read; buffers go with their module's weight."""
    plan, captured = jobs.make_plan(model, **options), jobs.captured(model)
    groups = captured.groups
    operators = [o for stage in plan.stages if rank in stage.ranks for o in stage.operators if o in groups]
    read = {name for o in operators for name in groups[o].parameters}
    found = {}
    for name, tensor in named_tensors(captured.model.module).items():
        of = f"{name.rpartition('.')[0]}.weight" if "." in name else name
        is_held = (name if isinstance(tensor, torch.nn.Parameter) else of) in read
        found[name] = tensor.numel() * tensor.element_size() if is_held else 0
    return found


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("two_branch", TWO),
        ("normed", TWO),
        ("tied_gpt", TWO),
        ("frozen", TWO),
        ("small_gpt", {"num_stages": 3, "ranks": [(0, 1), (1,), (0,)], "num_microbatches": 4}),
    ],
)
def test_each_rank_holds_the_bytes_of_its_stages_parameters_and_buffers(ranks, model, options):
    answers = ranks.run(holdings, model=model, **options)
    for rank, (held, gone) in enumerate(answers):
        expected = planned_holdings(model, rank, **options)
        assert held == expected
        assert gone == {name for name, size in expected.items() if not size}
    whole = sum(size for size in planned_holdings(model, 0, **ALONE).values())
    assert sum(answers[0][0].values()) < whole


def test_a_tied_parameter_is_held_by_both_ranks_that_read_it(ranks):
    (first, _), (last, _) = ranks.run(holdings, model="tied_gpt", **TWO)
    both = {name for name in first if first[name] and last[name]}
    assert len(both) == 1


def test_what_no_stage_reads_stays_with_rank_0(ranks):
    (first, _), (last, gone) = ranks.run(holdings, model="scaled", **TWO)
    assert first["unread.weight"] == 16
    assert last["unread.weight"] == 0
    assert {"unread.weight", "unread.bias"} <= gone


def test_a_plan_of_one_rank_keeps_the_model_whole():
    held, gone = holdings("two_branch", **ALONE)
    assert all(held.values())
    assert not gone


def errors_without_the_rest(model, **options):
    """Errors of two steps of a pipeline that has emptied what it does not read."""
    plan = jobs.make_plan(model, **options)
    batch = jobs.whole_batch(model, plan)
    with Pipeline(plan, jobs.whole_batch(model, plan)) as pipeline:
        for _ in range(2):
            pipeline.step(batch.kwargs or batch.args, batch.targets)
        found = compare(pipeline.worker, batch if pipeline.rank == 0 else None)
        return found.max_gradient_error


@pytest.mark.parametrize(
    ("model", "limit", "options"),
    [
        ("small_mmt", 0.0, {"schedule": "split"}),
        ("small_gpt", 0.0, {"schedule": "recompute"}),
        ("small_gpt", 0.0, {"schedule": "zb-h1", "relay": True}),
        ("tied_gpt", 1e-6, {"num_stages": 3, "ranks": [(0, 1), (1,), (0,)], "schedule": "split"}),
        ("frozen", 0.0, {}),
        ("scaled", 0.0, {}),
        ("recommender", 1e-6, {}),
        ("llama", 1e-6, {}),
    ],
)
def test_gradients_are_those_of_one_process_without_the_rest_of_the_model(ranks, model, limit, options):
    if model == "llama":
        pytest.importorskip("transformers", reason="transformers is not installed: its models are not tested")
    assert max(ranks.run(errors_without_the_rest, model=model, **{**TWO, **options})) <= limit


def saved_and_resaved(model, **options):
    """A random state loaded and saved, by a pipeline that holds its part alone."""
    plan = jobs.make_plan(model, **options)
    state = jobs.whole_batch(model, plan).module.state_dict()
    torch.manual_seed(1)
    for value in state.values():
        value.copy_(torch.rand(value.shape))
    with Pipeline(plan, jobs.whole_batch(model, plan)) as pipeline:
        pipeline.load_state_dict(state)
        return state, pipeline.state_dict()


@pytest.mark.parametrize("model", ["scaled", "normed", "tied_gpt", "llama"])
def test_a_state_is_loaded_in_parts_and_saved_whole(ranks, model):
    if model == "llama":
        pytest.importorskip("transformers", reason="transformers is not installed: its models are not tested")
    (state, saved), (_, other) = ranks.run(saved_and_resaved, model=model, **TWO)
    assert list(saved) == list(state)
    assert all(torch.equal(saved[name], value) for name, value in state.items())
    assert other == {}


def test_a_captured_model_stays_whole_for_the_next_pipeline(ranks):
    assert (
        ranks.run(bytes_of_a_captured_model, model="two_branch")
        == [sum(planned_holdings("two_branch", 0, **ALONE).values())] * 2
    )


def bytes_of_a_captured_model(model):
    source = jobs.captured(model)
    with Pipeline(jobs.make_plan(model, **TWO), source):
        return sum(tensor.untyped_storage().nbytes() for tensor in named_tensors(source.model.module).values())


def second_pipeline(model):
    plan = jobs.make_plan(model, **TWO)
    source = jobs.whole_batch(model, plan)
    with Pipeline(plan, source):
        pass
    try:
        Pipeline(plan, source)
    except DoesNotMatch as error:
        return str(error)


def test_a_model_that_a_pipeline_has_taken_is_refused_by_the_next(ranks):
    for answer in ranks.run(second_pipeline, model="two_branch"):
        assert "has no values" in answer
        assert "build the model anew" in answer


@pytest.mark.parametrize("model", ["small_gpt", "normed", "experts", "gpt2", "llama", "unet"])
def test_a_program_captured_on_the_host_makes_its_tensors_on_the_ranks_device(model):
    # Every operator refuses tensors of two devices; meta is the second device that every machine has.
    if model in ("gpt2", "llama"):
        pytest.importorskip("transformers", reason="transformers is not installed: its models are not tested")
    source = capture(load_model(f"tests.support.training_models:{model}", 4))
    before = source.describe(2)
    after = aimed_at(source, torch.device("meta")).describe(2)
    assert {n: [i.shape for i in infos] for n, infos in after.items()} == {
        n: [i.shape for i in infos] for n, infos in before.items()
    }


@pytest.mark.parametrize("model", ["small_mmt", "tied_gpt", "normed", "scaled", "gated", "recommender", "detector"])
def test_the_tensors_of_a_stage_are_those_that_its_part_fetches(model):
    source = jobs.captured(model)
    for stage in jobs.make_plan(model).stages:
        part = extract(source, stage.operators)
        fetched = [fetch(part.module, node.target) for node in part.module.graph.nodes if node.op == "get_attr"]
        assert set(tensors_read(source, stage.operators)) == {id(t) for t in fetched if isinstance(t, torch.Tensor)}


def test_what_the_first_capture_of_a_process_registers_in_a_library_is_no_change_of_the_model():
    registry = pytest.importorskip("transformers").AttentionInterface._global_mapping
    registry.pop(NAME, None)  # as a process has it that has captured nothing yet
    _, attributes = capture_surely(load_model("tests.support.training_models:llama", 4), 2, values_follow=False)
    assert NAME in registry
    assert attributes.changed() == []
