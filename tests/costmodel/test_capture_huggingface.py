"""Hugging Face models, unchanged: captured as they train, without masks and caches that only tracing makes."""

import pytest
import torch
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile

transformers = pytest.importorskip("transformers", reason="transformers is not installed: its models are not tested")

from tests.support import hugging_face_models as models  # noqa: E402 - imports transformers

SMALL = models.SMALL


def llama(**inputs):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, **inputs.pop("config", {}))
    tokens = torch.randint(64, (4, 8))
    inputs = {"input_ids": tokens, "labels": tokens, **inputs}
    module = transformers.LlamaForCausalLM(config).train()
    return TrainingModel("llama", module, (), inputs, None, False, lambda output: output.loss, {}, 4)


def attention_of(captured):
    nodes = [node for group in captured.groups.values() for node in group.nodes]
    found = [node for node in nodes if node.target is torch.ops.aten.scaled_dot_product_attention.default]
    return [(node.args[3] is not None if len(node.args) > 3 else False, node.args[5:6] == (True,)) for node in found]


def loss_of(model, captured):
    leaves = captured.program.module(*captured.bind(model).values())
    return model.evaluate(pytree.tree_unflatten(leaves, captured.program.out_spec), None)[0]


def test_causal_attention_is_captured_without_a_mask_and_with_the_models_own_loss():
    model = llama()
    captured = capture(model)
    assert attention_of(captured) == [(False, True)] * 2
    expected = model.module(**model.kwargs).loss
    torch.testing.assert_close(loss_of(model, captured), expected)


def test_the_models_configuration_is_put_back():
    model = llama()
    capture(model)
    assert (model.module.config._attn_implementation, model.module.config.use_cache) == ("sdpa", True)


def test_rotary_tables_and_position_ids_are_replicated_and_never_sent():
    captured = capture(llama())
    sent = {captured.groups[flow.producer].module for flow in captured.flows.values()}
    assert not [name for name in sent if "rotary" in name]


def test_with_padding_the_mask_stays():
    mask = torch.ones(4, 8, dtype=torch.long)
    mask[:, :3] = 0
    model = llama(attention_mask=mask)
    captured = capture(model)
    assert attention_of(captured) == [(True, False)] * 2
    torch.testing.assert_close(loss_of(model, captured), model.module(**model.kwargs).loss)


def test_a_window_shorter_than_the_sequence_keeps_its_mask():
    torch.manual_seed(0)
    module = transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL, sliding_window=4)).train()
    tokens = torch.randint(64, (4, 8))
    inputs = {"input_ids": tokens, "labels": tokens}
    model = TrainingModel("mistral", module, (), inputs, None, False, lambda output: output.loss, {}, 4)
    captured = capture(model)
    assert attention_of(captured) == [(True, False)] * 2
    torch.testing.assert_close(loss_of(model, captured), model.module(**inputs).loss)


@pytest.mark.parametrize("name", ["t5"])
def test_other_kinds_are_captured_unchanged_with_their_own_loss(name):
    model = load_model(f"tests.support.hugging_face_models:{name}", 4)
    captured = capture(model)
    torch.testing.assert_close(loss_of(model, captured), model.loss(model.module(**model.kwargs)))


def test_a_model_that_cannot_do_without_its_mask_keeps_it():
    config = transformers.FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=4)
    tokens = torch.randint(64, (4, 8))
    inputs = {"input_ids": tokens, "labels": tokens}
    module = transformers.FalconForCausalLM(config).train()
    model = TrainingModel("falcon", module, (), inputs, None, False, lambda output: output.loss, {}, 4)
    torch.testing.assert_close(loss_of(model, capture(model)), module(**inputs).loss)


def test_a_model_with_an_autocast_region_is_measured_in_blocks_what_was_captured_on_meta_runs_elsewhere():
    options = Options(
        "tests.support.hugging_face_models:llama", (2,), repeats=1, links=False, memory_limit_bytes=100_000
    )
    found = profile(options)
    assert "signatures" in found.extra
    assert all(times.forward_ns[0] > 0 for times in found.times if times is not found.times[-1])
