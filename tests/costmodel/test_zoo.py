"""The zoo's models: the same every time, of the shapes they promise, and one capture for all batch sizes."""

import importlib
import subprocess
import sys

import pytest
import torch

from costmodel import zoo
from costmodel.capture.capture import capture, operator_graph
from costmodel.capture.models import load_model, move
from costmodel.errors import UsageError


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["uno", "gpt"])
def test_a_small_models_fingerprint_is_the_same_at_any_batch_size_and_in_any_capture(name):
    prints = {
        operator_graph(capture(load_model(f"zoo:{name}:small", batch)), sizes).fingerprint
        for batch, sizes in ((1, (1,)), (4, (1, 4)), (6, (3,)))
    }
    assert len(prints) == 1


def on_meta(module, function):
    with torch.device("meta"):
        return getattr(importlib.import_module(f"costmodel.zoo.{module}"), function)()


@pytest.mark.parametrize("name", zoo.NAMES)
def test_a_small_models_loss_is_the_same_every_time(name):
    losses = set()
    for _ in range(2):
        model = load_model(f"zoo:{name}:small", 2)
        loss, weight = model.evaluate(model.module(*model.args, **model.kwargs), model.targets)
        losses.add(loss.item())
        assert weight is None
    assert len(losses) == 1


def test_the_multi_modal_transformer_has_graphpipes_shape():
    from costmodel.zoo import mmt

    with torch.device("meta"):
        model, inputs, _, _ = mmt.build(batch=2)
    assert [len(branch) for branch in model.branches] == [8, 8, 8, 8]
    assert [tuple(x.shape) for x in inputs] == [(2, 256, 1024)] * 4
    layer = model.branches[0][0]
    assert (layer.num_heads, layer.up.out_features) == (16, 4096)


def test_the_branches_meet_only_at_the_concatenation():
    graph = operator_graph(capture(load_model("zoo:mmt:small", 2)), (2,))
    upstream: list[set[str]] = []
    for i, operator in enumerate(graph.operators):
        own = {operator.module.split(".")[1]} if operator.module.startswith("branches.") else set()
        upstream.append(own.union(*(upstream[p] for p in graph.predecessors[i])))
    joins = [
        operator.kind
        for i, operator in enumerate(graph.operators)
        if len(upstream[i]) > 1 and all(len(upstream[p]) == 1 for p in graph.predecessors[i])
    ]
    assert joins == ["cat"]


def test_the_case_study_is_two_branches_of_eight_layers():
    model, inputs, *_ = on_meta("mmt", "build_case_study")
    assert ([len(branch) for branch in model.branches], len(inputs)) == ([8, 8], 2)


def test_uno21_has_a_tower_for_each_of_21_inputs():
    model, inputs, *_ = on_meta("uno", "build_21")
    assert len(inputs) == len(model.towers) == 21


@pytest.mark.parametrize(("function", "num_dense", "num_tables"), [("build", 7, 7), ("build_26", 1, 26)])
def test_dlrms_tables_hold_a_million_rows_of_64(function, num_dense, num_tables):
    model, *_ = on_meta("dlrm", function)
    assert {tuple(table.weight.shape) for table in model.tables} == {(1_000_000, 64)}
    assert (len(model.dense), len(model.tables)) == (num_dense, num_tables)


@pytest.mark.parametrize(
    ("name", "millions"),
    # Published counts; clip, vit and yolo have no class token, contrastive text projection or box decoder.
    [("llama", 6738), ("moe", 46703), ("resnet50", 25.6), ("inception", 23.8), ("t5", 738), ("vit", 304)],
)
def test_a_full_size_has_the_published_number_of_parameters(name, millions):
    model, *_ = on_meta(name, "build")
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.06)


def test_each_sample_of_the_mixture_is_routed_by_itself():
    model = load_model("zoo:moe:small", 2)
    (tokens,) = model.args
    with torch.no_grad():
        together = model.module(tokens)
        alone = torch.cat([model.module(tokens[:1]), model.module(tokens[1:])])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_cross_attention_takes_the_image_to_every_second_layer():
    graph = operator_graph(capture(load_model("zoo:vlm:small", 2)), (2,))
    widest = max(graph.tensors, key=lambda tensor: len(tensor.consumers))
    readers = [graph.operators[graph.index[name]].module for name in widest.consumers]
    assert readers == [f"cross.{i}.attention.{part}" for i in (0, 1) for part in ("key", "value")]


def test_unos_seven_inputs_share_the_drug_tower_between_two():
    model = load_model("zoo:uno:small", 2)
    assert len(model.kwargs) == 7
    graph = operator_graph(capture(model), (2,))
    readers = [o for o in graph.operators if "towers.drug_descriptors.0.weight" in o.parameters]
    assert len(readers) == 2


def test_gpts_head_is_untied_unless_asked():
    from costmodel.zoo import gpt

    model, *_ = gpt.build_small(2)
    assert model.head.weight is not model.tokens.weight
    model, *_ = gpt.build_small(2, tied=True)
    assert model.head.weight is model.tokens.weight


@pytest.mark.parametrize("spec", ["zoo:unknown", "zoo:mmt:large", "zoo:"])
def test_an_unknown_zoo_name_lists_the_known_ones(spec):
    with pytest.raises(UsageError, match="it has mmt, uno, gpt, "):
        zoo.locate(spec)


def test_the_register_imports_no_torch():
    script = "import sys, costmodel.zoo as z; z.locate('zoo:mmt:small'); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "False"


@pytest.mark.parametrize("name", ["llama", "llama3", "moe", "yolo", "mmt"])
def test_a_small_model_trains_in_bfloat16_as_in_float32(name):
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        model = move(load_model(f"zoo:{name}:small", 2), "cpu", dtype)
        loss, _ = model.evaluate(model.module(*model.args, **model.kwargs), model.targets)
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_an_expert_seats_more_than_256_tokens_in_bfloat16():
    from costmodel.zoo.moe import RoutedFeedForward

    torch.manual_seed(0)
    experts = RoutedFeedForward(8, 8, num_experts=1, num_chosen=1, slack=1.0)
    x = torch.randn(1, 600, 8)
    wide, narrow = experts(x), experts.bfloat16()(x.bfloat16())
    assert (narrow.float() - wide).abs().max() < 0.02 * wide.abs().max()


def test_the_llama3_stack_has_the_shape_of_llama_3_8b():
    model, (tokens,), *_ = on_meta("llama", "build_llama3")
    layer = sum(p.numel() for p in model.layers[0].parameters())
    assert (len(model.layers), layer, tuple(tokens.shape)) == (8, 218_112_000, (1, 4096))
    assert model.tokens.weight.shape == model.head.weight.shape == (128256, 4096)
