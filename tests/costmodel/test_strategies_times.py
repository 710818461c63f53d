"""Times of stages: which collectives a configuration adds, and what hides behind compute."""

from dataclasses import replace

import pytest

from costmodel.architectures.command import make
from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.catalogue import device
from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives import all_gather_ns, all_reduce_ns, all_to_all_ns, reduce_scatter_ns
from costmodel.model.profile import Profile
from costmodel.model.work import Work
from costmodel.roofline import estimate
from costmodel.stages.config import StageConfig
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies import StrategyModel, TrainingJob
from costmodel.stages.strategies.division import Degrees
from costmodel.stages.strategies.efficiency import Efficiency
from tests.support.gpt_graph import Gpt, cluster, gpt

S, H, A = 64, 32, 4
LAYER = range(1, 11)
NO_OVERLAP = TrainingJob(overlap=False)
MACHINES: Cluster = cluster()


def own(operators: range, degrees: Degrees, profile: Profile | None = None) -> tuple[int, ...]:
    """Return F, I and W of the operators' own parts, without communication."""
    efficiency = Efficiency(MeasuredOperators(profile or gpt(1, S, H, A), 1), TrainingJob())
    return tuple(map(sum, zip(*(efficiency.times(i, degrees) for i in operators), strict=True)))


def test_a_stage_of_one_rank_costs_what_the_profile_says():
    stage = StrategyModel(gpt(1, S, H, A), MACHINES, 1, TrainingJob()).stage(LAYER, StageConfig(), (0,))
    assert (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns) == (10_000, 10_000, 6_000)
    assert (stage.recompute_ns, stage.reduce_ns, stage.optimizer_ns) == (0, 0, 0)


def test_gradients_are_added_to_others_where_there_are_several_microbatches():
    model = StrategyModel(gpt(1, S, H, A), MACHINES, 1, TrainingJob())
    assert model.stage(LAYER, StageConfig(), (0,), (), 2).backward_weight_ns == 6_000 + 700


def test_tensor_parallelism_sums_two_outputs_in_f_and_two_gradients_in_i():
    config = StageConfig(tensor=4)
    stage = StrategyModel(gpt(1, S, H, A), MACHINES, 1, NO_OVERLAP).stage(LAYER, config, range(4))
    one = all_reduce_ns(MACHINES, (0, 1, 2, 3), 2 * S * H)
    forward, inputs, weights = own(LAYER, Degrees(4))
    assert stage.forward_ns == forward + 2 * one
    assert stage.backward_input_ns == inputs + 2 * one
    assert stage.backward_weight_ns == weights


def test_sequence_parallelism_gathers_and_scatters_twice_in_f_and_gathers_twice_more_in_i():
    config = StageConfig(tensor=4, sequence=4)
    stage = StrategyModel(gpt(1, S, H, A), MACHINES, 1, NO_OVERLAP).stage(LAYER, config, range(4))
    gather = all_gather_ns(MACHINES, (0, 1, 2, 3), 2 * S * H)
    scatter = reduce_scatter_ns(MACHINES, (0, 1, 2, 3), 2 * S * H)
    forward, inputs, _ = own(LAYER, Degrees(4, sequence=True))
    assert stage.forward_ns == forward + 2 * gather + 2 * scatter
    assert stage.backward_input_ns == inputs + 4 * gather + 2 * scatter


def test_gradient_sums_of_a_layer_hide_behind_its_own_weight_gradients():
    slow = gpt(1, S, H, A, forward_ns=10**9)
    stage = StrategyModel(slow, MACHINES, 1, TrainingJob()).stage(LAYER, StageConfig(tensor=4), range(4))
    assert stage.backward_input_ns == own(LAYER, Degrees(4), slow)[1] + 2  # a ns of each, which the host issues anyhow


def test_the_stage_after_a_tensor_parallel_one_gathers_its_first_input_again():
    model = StrategyModel(gpt(2, S, H, A), MACHINES, 1, NO_OVERLAP)
    config = StageConfig(tensor=4, sequence=4)
    whole = model.stage(range(1, 21), config, range(4))
    halves = [model.stage(r, config, range(4)) for r in (range(1, 11), range(11, 21))]
    assert whole.forward_ns == sum(half.forward_ns for half in halves)


def test_a_loss_over_a_divided_vocabulary_sums_three_numbers_a_token():
    profile = gpt(1, S, H, A, 128)
    config = StageConfig(tensor=2)
    model = StrategyModel(profile, MACHINES, 1, NO_OVERLAP)
    loss = len(profile.graph.operators) - 1
    alone = own(range(loss, loss + 1), Degrees(2), profile)[0]
    found = model.stage(range(loss, loss + 1), config, range(2))
    assert found.forward_ns == alone + 3 * all_reduce_ns(MACHINES, (0, 1), 4 * S)


def test_full_recompute_runs_the_forwards_of_blocks_again_with_their_collectives():
    model = StrategyModel(gpt(1, S, H, A, 128), MACHINES, 1, TrainingJob())
    config = StageConfig(tensor=2, recompute="full")
    layer = model.stage(LAYER, StageConfig(tensor=2), range(2))
    assert model.stage(range(13), config, range(2)).recompute_ns == layer.forward_ns


def test_selective_recompute_runs_attention_again():
    model = StrategyModel(gpt(1, S, H, A), MACHINES, 1, TrainingJob())
    assert model.stage(LAYER, StageConfig(recompute="selective"), (0,)).recompute_ns == 1000


def test_attention_that_stores_its_scores_also_passes_over_them_six_times():
    a100 = device("a100-sxm-80")
    core = Work("attention", "inner", S, H // A, H // A, heads=A, kv_heads=A, context=S, causal=True)
    scores = Work("elementwise", "inner", A * S, outer=S, passes=6)
    unmasked, masked = (
        estimate(replace(core, causal=flag), a100, "fp16", 1).forward.central_ns for flag in (False, True)
    )
    model = StrategyModel(gpt(1, S, H, A), MACHINES, 1, TrainingJob(flash=False))
    added = estimate(scores, a100, "fp16", 1).forward.central_ns
    assert model.stage(range(3, 4), StageConfig(), (0,)).forward_ns == round(1000 * unmasked / masked) + added


def test_context_parallelism_sends_keys_and_values_around_the_ring():
    config = StageConfig(context=4)
    stage = StrategyModel(gpt(1, S, H, A), MACHINES, 1, NO_OVERLAP).stage(LAYER, config, range(4))
    chunk = (S // 4) * 2 * H * 2
    assert stage.forward_ns == own(LAYER, Degrees(context=4))[0] + 3 * MACHINES.p2p_ns(0, 1, chunk)
    assert stage.backward_input_ns == own(LAYER, Degrees(context=4))[1] + 3 * MACHINES.p2p_ns(0, 1, 2 * chunk)


def test_ranks_of_a_ring_share_the_causal_half_evenly():
    profile, _ = make("llama3-8b", "a100-sxm-80", (1,), 32768)
    core = profile.graph.index["model.layers.0.self_attn.attention"]
    efficiency = Efficiency(MeasuredOperators(profile, 1), TrainingJob())
    whole, *parts = (efficiency.times(core, Degrees(context=c))[0] for c in (1, 2, 8, 32))
    assert [c * part / whole for c, part in zip((2, 8, 32), parts, strict=True)] == pytest.approx([1, 1, 1], rel=0.02)


def experts() -> Gpt:
    model = Gpt(S, H, A)
    x = model.source()
    route = model.add("layers.0.router", "layers.0", Work("matmul", "whole", S, H, 8), [x], [x], [("r", (8, H))], 8)
    up = Work("matmul", "expert", S, H, 4 * H, experts=8, active=2)
    down = Work("matmul", "expert", S, 4 * H, H, experts=8, active=2)
    a = model.add("layers.0.up", "layers.0", up, [x, route], [x], [("up", (8, 4 * H, H))], 8 * H)
    b = model.add("layers.0.down", "layers.0", down, [a], [a], [("down", (8, H, 4 * H))], 2 * H)
    model.add("layers.0.sum", "layers.0", Work("elementwise", "sequence", S, outer=H), [b, route], (), (), H)
    return model


def test_experts_take_one_exchange_to_them_and_one_back_in_f_and_again_in_i():
    model = StrategyModel(experts().profile(), MACHINES, 1, NO_OVERLAP)
    config = StageConfig(data=4, expert=4)
    stage = model.stage(range(1, 5), config, range(4))
    once = all_to_all_ns(MACHINES, (0, 1, 2, 3), S * 2 * H * 2)
    alone = own(range(1, 5), Degrees(expert=4), experts().profile())
    assert stage.forward_ns == alone[0] + 2 * once
    assert stage.backward_input_ns == alone[1] + 2 * once


def test_another_micro_batchs_compute_hides_all_to_alls_where_the_trainer_runs_it_beside_them():
    config, profile = StageConfig(data=4, expert=4), experts().profile()
    beside = replace(NO_OVERLAP, overlap_experts=True)
    stage = StrategyModel(profile, MACHINES, 1, beside).stage(range(1, 5), config, range(4))
    once = all_to_all_ns(MACHINES, (0, 1, 2, 3), S * 2 * H * 2)
    hidden = sum(own(range(len(profile.graph.operators)), Degrees(expert=4), profile)) // 4
    assert stage.forward_ns == own(range(1, 5), Degrees(expert=4), profile)[0] + 2 * max(1, once - hidden)


def test_experts_that_lie_side_by_side_take_one_copy_a_rank():
    config, profile = StageConfig(data=4, expert=4), experts().profile()  # two experts a rank, two a token
    flex = replace(NO_OVERLAP, dispatcher="flex")
    drawn, dealt = (StrategyModel(profile, MACHINES, 1, job).stage(range(1, 5), config, range(4)) for job in
                    (flex, replace(flex, experts_together=2)))  # fmt: skip
    less = [all_to_all_ns(MACHINES, (0, 1, 2, 3), copies * S * H * 2) for copies in (2, 1)]
    assert drawn.forward_ns - dealt.forward_ns == 2 * (less[0] - less[1])


def test_a_grouped_product_issues_each_of_a_ranks_experts_where_the_trainer_does():
    profile, calls = experts().profile(), {"matmul": 4.0, "elementwise": 1.0}
    for expert, products in ((0.0, 4), (4.0, 4 * 8 // 4)):
        each = {**calls, "expert": expert} if expert else calls
        job = replace(NO_OVERLAP, calls=each, call_ns=1e6)
        stage = StrategyModel(profile, MACHINES, 1, job).stage(range(1, 5), StageConfig(data=4, expert=4), range(4))
        assert stage.forward_ns == round(1e6 * (4 + 2 * products + 1))


def test_experts_weights_are_divided_among_expert_parallel_ranks():
    model = StrategyModel(experts().profile(), MACHINES, 1, TrainingJob())
    whole = dict(model.stage(range(1, 5), StageConfig(), (0,)).memory_terms)["parameters"]
    divided = dict(model.stage(range(1, 5), StageConfig(data=4, expert=4), range(4)).memory_terms)["parameters"]
    router, routed = 2 * 8 * H, 2 * 8 * 2 * 4 * H * H
    assert (whole, divided) == (router + routed, router + routed // 4)


def test_data_parallel_sums_hide_behind_the_backward_but_for_the_last_bucket():
    quick = StrategyModel(gpt(1, S, H, A), MACHINES, 1, NO_OVERLAP).stage(LAYER, StageConfig(data=8), range(8))
    size = dict(quick.memory_terms)["gradients"]
    assert quick.reduce_ns == all_reduce_ns(MACHINES, tuple(range(8)), size)
    # one bucket: all of it is the last one
    slow = StrategyModel(gpt(1, S, H, A, forward_ns=10**9), MACHINES, 1, TrainingJob())
    assert slow.stage(LAYER, StageConfig(data=8), range(8)).reduce_ns == quick.reduce_ns


def test_each_part_that_is_sent_pays_its_latency() -> None:
    """ZeRO-3 gathers block by block, and sums go by buckets: 1 MiB ones were as cheap as one of all gradients."""
    ranks = tuple(range(8))
    three = StageConfig(data=8, zero=3)
    one, four = (StrategyModel(gpt(n, S, H, A), MACHINES, 1, NO_OVERLAP) for n in (1, 4))
    whole, blocks = range(len(four.profile.graph.operators)), four.num_blocks
    assert (one.num_blocks, blocks) == (1, 4)
    weights = dict(four.stage(whole, StageConfig(data=8), ranks).memory_terms)["parameters"]
    added = four.stage(whole, three, ranks).forward_ns - four.stage(whole, StageConfig(data=8), ranks).forward_ns
    assert added == blocks * all_gather_ns(MACHINES, ranks, -(-weights // blocks))
    assert added > all_gather_ns(MACHINES, ranks, weights)
    times = []
    for size in (2**10, 2**14, 2**30):
        training = TrainingJob(overlap=True, bucket_bytes=size, overlap_slowdown=1.19)
        times.append(StrategyModel(gpt(4, S, H, A), MACHINES, 1, training).stage(whole, StageConfig(data=8), ranks))
    sums = [stage.reduce_ns for stage in times]
    assert sums[0] > sums[1]
    assert sums[2] == all_reduce_ns(MACHINES, ranks, weights)


def test_megatrons_buckets_grow_with_the_ranks_that_sum_them() -> None:
    training = TrainingJob.of("megatron", "bf16", "adam")
    assert training.bucket_of(8) == 160 * 2**20
    assert training.bucket_of(1024) == 4_000_000 * 1024


def test_zero_2_scatters_after_every_microbatch_and_zero_3_gathers_for_f_and_b():
    model = StrategyModel(gpt(1, S, H, A), MACHINES, 1, NO_OVERLAP)
    ranks = tuple(range(8))
    plain, two, three = (model.stage(LAYER, StageConfig(data=8, zero=z), ranks) for z in (0, 2, 3))
    size = dict(plain.memory_terms)["gradients"]
    scatter, gather = reduce_scatter_ns(MACHINES, ranks, size), all_gather_ns(MACHINES, ranks, size)
    assert two.backward_weight_ns == plain.backward_weight_ns + scatter
    assert three.forward_ns == plain.forward_ns + gather
    assert three.backward_input_ns == plain.backward_input_ns + gather
    assert three.backward_weight_ns == plain.backward_weight_ns + scatter
    assert two.reduce_ns == three.reduce_ns == 0


def test_zero_1_divides_the_step_and_gathers_what_it_stepped():
    model = StrategyModel(gpt(1, S, H, A), MACHINES, 1, TrainingJob(optimizer="adam"))
    ranks = tuple(range(8))
    plain, one = (model.stage(LAYER, StageConfig(data=8, zero=z), ranks) for z in (0, 1))
    size = dict(plain.memory_terms)["gradients"]
    assert plain.optimizer_ns == 9000
    assert one.optimizer_ns == 9000 // 8 + all_gather_ns(MACHINES, ranks, size)


def test_an_operator_that_does_not_say_what_it_computes_stays_whole():
    profile = gpt(1, S, H, A)
    graph = replace(profile.graph, operators=tuple(replace(o, work=None) for o in profile.graph.operators))
    model = StrategyModel(replace(profile, graph=graph), MACHINES, 1, TrainingJob())
    with pytest.raises(UsageError, match=r"'layers.0.ln1' does not say what it computes.*penstock model"):
        model.stage(LAYER, StageConfig(tensor=2), range(2))
    assert model.stage(LAYER, StageConfig(data=2), range(2)).forward_ns == 10_000


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        (StageConfig(tensor=3), 3, "4 heads, which 3 tensor-parallel ranks do not divide"),
        (StageConfig(tensor=2), 4, "4 ranks for data 1 x tensor 2 x context 1"),
        (StageConfig(tensor=4, sequence=2), 4, "config.sequence is 2; .* 1 or 4"),
        (StageConfig(data=4, expert=3), 4, "config.expert is 3; .* choose a divisor of 4"),
        (StageConfig(tensor=2, sequence=2, data=4, expert=8), 8, "config.expert is 8; .* choose a divisor of 4"),
        (StageConfig(offload="parameters"), 1, "only ZeRO-3"),
        (StageConfig(offload="activations"), 1, "names none; give memory_gib"),
    ],
)
def test_configurations_that_cannot_be_meant_are_refused_with_the_way_out(config, ranks, message):
    model = StrategyModel(gpt(1, S, H, A), MACHINES, 1, TrainingJob())
    with pytest.raises(UsageError, match=message):
        model.stage(LAYER, config, range(ranks))


def test_a_host_too_small_for_what_is_offloaded_says_by_how_much():
    model = StrategyModel(gpt(1, 4096, 4096, A), cluster(8, 1), 16, TrainingJob())
    with pytest.raises(NoPlanFits, match=r"134217728 for each, .* too few"):
        model.stage(LAYER, StageConfig(offload="activations"), (0,))


def test_offloaded_activations_leave_a_window_and_cost_copies():
    machines = cluster(8, 64)
    model = StrategyModel(gpt(4, S, H, A), machines, 1, NO_OVERLAP)
    plain = model.stage(range(1, 41), StageConfig(), (0,))
    moved = model.stage(range(1, 41), StageConfig(offload="activations"), (0,))
    assert moved.activation_bytes == 0
    assert dict(moved.memory_terms)["offload_window"] == 2 * 34 * S * H
    assert moved.forward_ns == plain.forward_ns + round(plain.activation_bytes / 24.0)  # PCIe 4, as the catalogue says


def test_precision_scales_by_the_roofline_and_needs_a_catalogue_device():
    with pytest.raises(UsageError, match="names no catalogue device"):
        StrategyModel(gpt(1, S, H, A, catalogue=""), MACHINES, 1, TrainingJob("fp32"))
    full = StrategyModel(gpt(1, 512, 1024, 8), MACHINES, 4, TrainingJob("fp32"))
    half = StrategyModel(gpt(1, 512, 1024, 8), MACHINES, 4, TrainingJob("fp16"))
    assert full.stage(LAYER, StageConfig(), (0,)).forward_ns > half.stage(LAYER, StageConfig(), (0,)).forward_ns
    assert (
        full.stage(LAYER, StageConfig(), (0,)).activation_bytes
        == 2 * half.stage(LAYER, StageConfig(), (0,)).activation_bytes
    )


def test_the_loss_gradient_is_alive_while_all_else_is_kept():
    profile = gpt(1, S, H, A, 128)
    model = StrategyModel(profile, MACHINES, 2, TrainingJob())
    terms = model.terms(range(13), StageConfig(tensor=2), range(2), 1, 1)
    assert terms.workspace.point == 8 * 2**20 + 2 * 2 * S * 128 // 2


def test_tied_embeddings_are_held_once_in_a_stage_that_has_both():
    profile = gpt(1, S, H, A, 128)
    model = StrategyModel(profile, MACHINES, 1, TrainingJob())
    parameters = dict(model.stage(range(13), StageConfig(), (0,)).memory_terms)["parameters"]
    assert parameters == sum(p.size_bytes for p in profile.graph.parameters)
