"""Low-rank adapters beside a frozen model: what trains, what is kept, and what nobody computes any more."""

from math import prod

import pytest

from costmodel.architectures.command import make
from costmodel.errors import UsageError
from costmodel.model.blocks import block_of

RANK = 8


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2", "gpt3-175b"])
def test_adapters_alone_train_and_hold_rank_times_both_widths_of_each_layer(model: str) -> None:
    whole, adapted = (make(model, "h100-sxm-80", (1,), lora_rank=rank)[0].graph for rank in (0, RANK))
    trained = {p.name: p for p in adapted.parameters if p.trainable}
    assert trained
    assert {name.rpartition(".lora_")[0] for name in trained} == {
        o.module
        for o in whole.operators
        if o.kind == "linear" and block_of(o.module) and o.work and o.work.split != "whole"
    }
    works = {o.module: o.work for o in whole.operators if o.work}
    held = {module: RANK * (works[module].inner + works[module].outer) for module in works if works[module].inner}
    counted: dict[str, int] = {}
    for name, parameter in trained.items():
        module = name.rpartition(".lora_")[0]
        counted[module] = counted.get(module, 0) + prod(parameter.shape)
    assert all(held[module] == number for module, number in counted.items())
    assert {p.name for p in whole.parameters} <= {p.name for p in adapted.parameters}


def test_a_frozen_weight_gets_no_gradient_and_what_precedes_all_adapters_has_no_backward() -> None:
    profile, _ = make("llama3-8b", "h100-sxm-80", (1,), lora_rank=RANK)
    graph = profile.graph
    for operator, times in zip(graph.operators, profile.times, strict=True):
        frozen = operator.parameters and not any(graph.parameter_index[p].trainable for p in operator.parameters)
        assert not (frozen and any(times.backward_weight_ns)), operator.name
        assert operator.trainable or not operator.saved, operator.name
    without = [operator.name for operator in graph.operators if not operator.trainable]
    attention = "model.layers.0.self_attn"
    assert without == [
        "model.embed_tokens",
        "model.layers.0.input_layernorm",
        *(f"{attention}.{x}_proj" for x in "qkv"),
    ]
    head = graph.operators[graph.index["lm_head"]]
    assert head.trainable
    assert not head.saved, "a frozen matrix product needs its input for nothing"


def test_a_rank_above_the_widths_of_a_layer_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--lora-rank 4097 is above both widths of .*q_proj; give at most 4096"):
        make("llama3-8b", "h100-sxm-80", (1,), lora_rank=4097)


@pytest.mark.parametrize("model", ["zoo:gpt:small", "gpt", "nasnet", "a_module:build"])
def test_models_that_are_not_described_are_adapted_by_their_own_module(model: str) -> None:
    with pytest.raises(UsageError, match=r"--lora-rank adapts what is described.*requires_grad_"):
        make(model, "h100-sxm-80", (1,), lora_rank=RANK)
