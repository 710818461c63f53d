"""What trainers keep twice and what allocators reserve: terms of memory by trainer, point and upper value."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.machines.catalogue import device
from costmodel.machines.typical import typical_cluster
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import MemoryTerms, StrategyModel, TrainingJob
from costmodel.stages.strategies.trainers import trainers
from tests.support.described_models import described

PROFILE = described("llama")
CLUSTER = typical_cluster(device("h100-sxm-80").id, 8)


def terms(trainer: str, config: StageConfig, precision: str = "bf16", in_flight: int = 1) -> MemoryTerms:
    model = StrategyModel(PROFILE, CLUSTER, 2, TrainingJob.of(trainer, precision, "adam"))
    ranks = tuple(range(config.data * config.tensor))
    return model.terms(range(len(PROFILE.graph.operators)), config, ranks, 8, in_flight)


@given(
    st.sampled_from(sorted(trainers())), st.sampled_from(("fp32", "fp16", "bf16", "fp8")), st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2)), st.integers(0, 3), st.integers(1, 4), st.sampled_from(("none", "full")),
)  # fmt: skip
def test_no_upper_value_is_below_its_point(trainer, precision, data, tensor, zero, in_flight, recompute) -> None:
    config = StageConfig(data, tensor, zero=zero if data > 1 else 0, recompute=recompute)
    found = terms(trainer, config, precision, in_flight)
    assert all(amount.upper >= amount.point >= 0 for amount in found.items().values())
    assert found.upper_bytes == sum(amount.upper for amount in found.items().values())
    assert found.point_bytes == sum(amount.point for amount in found.items().values())


@pytest.mark.parametrize(
    ("zero", "precision", "whole"), [(0, "bf16", 1), (1, "bf16", 1), (2, "bf16", 0), (1, "fp16", 0)]
)
def test_deepspeeds_bf16_optimizer_keeps_gradients_in_fp32_beside_those_of_16_bits(zero, precision, whole) -> None:
    found = terms("deepspeed", StageConfig(4, zero=zero), precision)
    trained = terms("deepspeed", StageConfig(4), precision).gradients.point // 2
    assert found.gradient_copies.point == 4 * trained * whole
    assert found.gradient_copies.upper == pytest.approx(4 * trained if whole else trained, rel=0.01)


def test_transformer_engine_keeps_one_empty_gradient_for_all_weights_of_one_shape() -> None:
    names = {p.name.split(".", 3)[3]: p.shape for p in PROFILE.graph.parameters if ".layers." in p.name}
    products = [shape for shape in names.values() if len(shape) > 1]
    size = sum(2 * rows * columns for rows, columns in products)
    assert terms("megatron", StageConfig()).gradient_copies.point == size
    assert terms("megatron", StageConfig(tensor=2)).gradient_copies.point == size // 2
    assert terms("torchtitan", StageConfig()).gradient_copies.point == 0
    assert terms("megatron", StageConfig(), "fp32").gradient_copies.point == 0


def test_fsdp_keeps_masters_of_16_bit_weights_that_are_not_resharded() -> None:
    whole, parts = (terms("torchtitan", StageConfig(4, zero=zero)) for zero in (1, 3))
    assert whole.master_weights.point == 2 * parts.master_weights.point


def test_fsdp_sums_whole_gradients_into_parts_beside_them() -> None:
    whole, parts = (terms("torchtitan", StageConfig(4, zero=zero)) for zero in (1, 3))
    assert whole.gradient_copies.point == parts.gradients.point
    assert parts.gradient_copies.point == 0


def test_selective_recompute_by_operator_keeps_the_products_that_what_is_made_again_reads() -> None:
    """Of q, k, v, o, gate, up and down it keeps q, v, gate and down: rotated queries are made of q, nothing of down."""
    model = {fused: selective(fused) for fused in (True, False)}
    size = dict(zip((t.producer for t in PROFILE.graph.tensors), model[True].tensor_bytes(StageConfig()), strict=True))
    layer = "model.layers.0"
    attention = PROFILE.graph.operators[PROFILE.graph.index[f"{layer}.self_attn.attention"]]
    products = [f"{layer}.self_attn.q_proj", f"{layer}.self_attn.v_proj", f"{layer}.mlp.gate_proj"]
    kept = sum(size[name] for name in (*products, attention.name, "model.embed_tokens"))
    span = [i for i, block in enumerate(PROFILE.graph.blocks) if block == layer]
    found = {fused: one.terms(span, SELECTIVE, (0,), 1, 1).activations.point for fused, one in model.items()}
    assert 0 <= found[True] - kept < 0.01 * kept
    assert found[False] - found[True] == size[f"{layer}.mlp.down_proj"]


SELECTIVE = StageConfig(recompute="selective")


def selective(fused: bool) -> StrategyModel:
    return StrategyModel(PROFILE, CLUSTER, 2, TrainingJob.of("torchtitan", "bf16", "adam", {"fused": fused}))


def test_losses_that_ranks_share_keep_copies_of_logits_in_eager_pytorch() -> None:
    one, two = (terms("torchtitan-2024", StageConfig(tensor=tensor)).workspace.point for tensor in (1, 2))
    spare = terms("torchtitan", StageConfig()).workspace.point  # compiled: nothing beside logits and their gradient
    assert (two - spare) * 2 == (one - spare) * 12 // 8


def test_torchs_pipelines_have_a_buffer_for_each_message_of_a_step() -> None:
    cut = PROFILE.graph.index["model.layers.1.input_layernorm"]
    model = {t: StrategyModel(PROFILE, CLUSTER, 2, TrainingJob.of(t, "bf16", "adam")) for t in TORCH}
    hidden = model["torchtitan"].tensor_bytes(StageConfig())[0]
    ends = range(cut), range(cut, len(PROFILE.graph.operators))
    found = {
        name: [
            [one.terms(part, StageConfig(), (0,), count, 1).message_buffers.point for part in ends] for count in (1, 8)
        ]
        for name, one in model.items()
    }
    assert found["torchtitan"] == [[hidden, hidden], [8 * hidden, 8 * hidden]]
    assert found["megatron"] == [[0, 0], [0, 0]]
    assert found["torchtitan-2024"][1][0] == 16 * hidden
    assert found["torchtitan-2024"][1][1] > 16 * hidden  # logits of all micro-batches


TORCH = ("torchtitan", "torchtitan-2024", "megatron")


def test_torchaos_casts_of_weights_go_with_the_block_that_runs_again() -> None:
    every, one = (terms("torchtitan", StageConfig(recompute=again), "fp8").parameters for again in ("none", "full"))
    assert every.upper - every.point > 2 * (one.upper - one.point) > 0
    assert terms("megatron", SELECTIVE, "fp8").parameters == terms("megatron", StageConfig(), "fp8").parameters


def test_an_allocators_reserve_is_a_part_of_tensors_alone() -> None:
    found = terms("megatron", StageConfig(4, zero=1))
    assert found.fragmentation.upper == round(found.fragmenting * found.tensors_upper)
    assert replace(found, context=0, communicators=0).fragmentation == found.fragmentation


def test_transformer_engines_products_keep_what_they_read_in_8_bits_and_torchaos_in_16() -> None:
    kept = {
        (trainer, precision): terms(trainer, StageConfig(), precision).activations.point
        for trainer in ("megatron", "torchtitan")
        for precision in ("bf16", "fp8")
    }
    assert kept["torchtitan", "fp8"] == kept["torchtitan", "bf16"]
    assert 0.7 < kept["megatron", "fp8"] / kept["megatron", "bf16"] < 1


def test_a_trainer_that_is_like_another_has_its_habits_but_those_that_its_row_says() -> None:
    usual, mlperf = trainers()["megatron"], trainers()["megatron-mlperf5_0"]
    assert replace(usual, gradient_bytes=2, fp8_copy_bytes=0) == mlperf


def test_gradients_summed_where_they_are_kept_are_of_the_trainers_width() -> None:
    found = terms("megatron-mlperf5_0", StageConfig(4, zero=1), "fp8").gradients
    assert found.upper == found.point
