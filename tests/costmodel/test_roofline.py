"""Estimated times: laws of the roofline, its tables, and profiles scaled to another device or micro-batch size."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.architectures.command import make
from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.catalogue import device, devices
from costmodel.machines.cluster import uniform_cluster
from costmodel.machines.cluster_parts import DeviceType
from costmodel.model.graph import OperatorGraph
from costmodel.model.origin import ROOFLINE, Origin
from costmodel.model.profile import Profile, read_profile
from costmodel.model.work import Work
from costmodel.roofline import (
    OPTIMIZERS,
    Interval,
    OperatorEstimate,
    accumulate_ns,
    estimate,
    optimizer_step_ns,
    scale_profile,
    tables,
)
from costmodel.roofline.attention import num_pairs
from costmodel.roofline.narrow import RECIPES, check_recipe, computed_in, recipes
from costmodel.roofline.updates import orthogonal_flop
from planner.question.assumptions import assumptions, estimated
from planner.question.problem import Problem
from tests.support.repository import GOLDEN

A100, H100 = "a100-sxm-80", "h100-sxm-80"
sizes = st.integers(1, 6000)
widths = st.integers(1, 300)
names = st.sampled_from([row.id for row in devices()])

matmuls = st.builds(lambda t, i, o: Work("matmul", "column", t, i, o), sizes, sizes, sizes)
experts = st.builds(
    lambda t, i, o, e, a: Work("matmul", "expert", t, i, o, experts=e, active=min(a, e)),
    sizes, sizes, sizes, st.integers(1, 64), st.integers(1, 8),
)  # fmt: skip
attentions = st.builds(
    lambda t, c, i, o, h, causal: Work(
        "attention", "inner", t, i, o, heads=h, kv_heads=h, context=t if causal else c, causal=causal
    ),
    sizes, sizes, widths, widths, st.integers(1, 64), st.booleans(),
)  # fmt: skip
others = st.builds(
    lambda k, t, i, o, p: Work(k, "sequence", t, i, o, passes=p),
    st.sampled_from(["norm", "elementwise", "embedding", "loss"]), sizes, sizes, sizes, st.integers(1, 9),
)  # fmt: skip
works = st.one_of(matmuls, experts, attentions, others)


def parts(found: OperatorEstimate) -> tuple[Interval, Interval, Interval]:
    return found.forward, found.backward_input, found.backward_weight


def forward_flop(work: Work) -> int:
    if work.kind == "matmul":
        return 2 * work.tokens * max(1, work.active) * work.inner * work.outer
    return 2 * work.heads * num_pairs(work) * (work.inner + work.outer) if work.kind == "attention" else 0


def forward_elements(work: Work, samples: int) -> int:
    if work.kind == "matmul":
        rows = samples * work.tokens * max(1, work.active)
        return rows * (work.inner + work.outer) + max(1, min(work.experts, rows)) * work.inner * work.outer
    if work.kind == "attention":
        return samples * (work.tokens * work.heads + work.context * work.kv_heads) * (work.inner + work.outer)
    return samples * work.tokens * work.outer * work.passes


@settings(deadline=None)  # the clock judges no test
@given(works, names, st.integers(1, 16))
def test_low_central_and_high_are_rising_whole_ns_and_none_is_below_the_roof(
    work: Work, name: str, samples: int
) -> None:
    on = device(name)
    found = estimate(work, on, "fp16", samples)
    flop_ns = samples * forward_flop(work) / (on.tflops["fp16"] * 1000)
    bytes_ns = 2 * forward_elements(work, samples) / on.memory_gbs
    assert all(0 <= part.low_ns <= part.central_ns <= part.high_ns for part in parts(found))
    assert found.forward.low_ns >= max(flop_ns, bytes_ns)
    if work.kind == "matmul":
        assert min(found.backward_input.low_ns, found.backward_weight.low_ns) >= flop_ns
    if work.kind == "attention":
        assert found.backward_input.low_ns >= 2 * flop_ns


@settings(deadline=None)  # the clock judges no test
@given(works, names, st.data())
def test_more_of_one_dimension_never_takes_less_time(work: Work, name: str, data: st.DataObject) -> None:
    grown = {"matmul": ["tokens", "inner", "outer", "active"], "attention": ["tokens", "inner", "outer", "heads"]}
    field = data.draw(st.sampled_from(grown.get(work.kind, ["tokens", "outer", "passes"])))
    if field == "active" and work.active >= work.experts:
        field = "tokens"
    more = getattr(work, field) + (1 if field == "active" else data.draw(st.integers(1, 500)))
    changes = {field: more}
    if field == "tokens" and work.causal:
        changes["context"] = more  # self-attention stays self-attention
    before = estimate(work, device(name), "fp16", 1)
    after = estimate(replace(work, **changes), device(name), "fp16", 1)
    for less, most in zip(parts(before), parts(after), strict=True):
        assert less.low_ns <= most.low_ns
        assert less.central_ns <= most.central_ns
        assert less.high_ns <= most.high_ns


@settings(deadline=None)  # the clock judges no test
@given(works, names, st.integers(1, 15))
def test_a_larger_micro_batch_never_takes_less_time(work: Work, name: str, samples: int) -> None:
    before, after = (estimate(work, device(name), "fp16", size) for size in (samples, samples + 1))
    for less, more in zip(parts(before), parts(after), strict=True):
        assert (less.low_ns, less.central_ns, less.high_ns) <= (more.low_ns, more.central_ns, more.high_ns)


def test_a_large_matmul_reaches_the_published_share_and_a_small_one_does_not() -> None:
    for name, published in ((A100, 0.87), (H100, 0.80), ("h200-sxm-141", 0.80), ("b200-sxm-180", 0.78)):
        on = device(name)
        reached = []
        for width in (256, 16384):
            work = Work("matmul", "column", width, width, width)
            ideal_ns = forward_flop(work) / (on.tflops["bf16"] * 1000)
            reached.append(ideal_ns / estimate(work, on, "bf16", 1).forward.central_ns)
        assert reached[0] < 0.1
        assert 0.9 * published < reached[1] < published


def test_one_token_more_than_a_wave_holds_takes_a_tenth_longer_or_more() -> None:
    # 3,456 x 1,024 is 27 x 4 tiles of 128 x 256, one for each of an A100's 108 processors
    full, more = (Work("matmul", "column", tokens, 8192, 1024) for tokens in (3456, 3457))
    full_ns, more_ns = (estimate(work, device(A100), "bf16", 1).forward.central_ns for work in (full, more))
    assert more_ns > 1.1 * full_ns


def test_attention_skips_the_masked_half() -> None:
    assert num_pairs(Work("attention", "inner", 8, 4, 4, heads=1, kv_heads=1, context=8, causal=True)) == 36
    assert num_pairs(Work("attention", "inner", 8, 4, 4, heads=1, kv_heads=1, context=8)) == 64
    assert num_pairs(Work("attention", "inner", 8, 4, 4, heads=1, kv_heads=1, context=3, causal=True)) == 21


def test_the_gradients_of_a_matmul_are_matmuls_of_their_own_shapes() -> None:
    on = device(A100)
    found = estimate(Work("matmul", "column", 512, 1024, 4096), on, "bf16", 1)
    assert found.backward_input == estimate(Work("matmul", "row", 512, 4096, 1024), on, "bf16", 1).forward
    assert found.backward_weight == estimate(Work("matmul", "row", 1024, 512, 4096), on, "bf16", 1).forward


def test_what_has_no_gradient_or_no_weight_takes_no_time_there() -> None:
    on = device(A100)
    assert estimate(Work("embedding", "row", 64, 1000, 64), on, "bf16", 1).backward_input == Interval(0, 0, 0)
    assert estimate(Work("elementwise", "inner", 64, outer=64), on, "bf16", 1).backward_weight == Interval(0, 0, 0)


def test_a_precision_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="bf16"):
        estimate(Work("norm", "sequence", 64, outer=64), device("v100-sxm2-16"), "bf16", 1)


def test_fp8_speeds_matmuls_and_leaves_the_rest_in_bf16() -> None:
    on = device(H100)
    big, norm = Work("matmul", "column", 8192, 8192, 28672), Work("norm", "sequence", 4096, outer=4096)
    assert estimate(big, on, "fp8", 1).forward.central_ns < 0.7 * estimate(big, on, "bf16", 1).forward.central_ns
    assert estimate(norm, on, "fp8", 1) == estimate(norm, on, "bf16", 1)


def test_nvfp4_speeds_large_matmuls_beyond_fp8_and_leaves_the_rest_in_bf16() -> None:
    on = device("gb300-nvl72")
    big, norm = Work("matmul", "column", 8192, 16384, 53248), Work("norm", "sequence", 4096, outer=4096)
    times = [estimate(big, on, precision, 1).forward.central_ns for precision in ("nvfp4", "fp8", "bf16")]
    assert times == sorted(times)
    assert estimate(norm, on, "nvfp4", 1) == estimate(norm, on, "bf16", 1)


def test_only_products_of_blocks_that_are_no_routers_are_narrow() -> None:
    graph = make("mixtral-8x7b", "h100-sxm-80", (1,), 512, "fp8")[0].graph
    narrow = {o.name for i, o in enumerate(graph.operators) if computed_in(graph, i, "fp8") == "fp8"}
    assert "lm_head" not in narrow
    assert {name.rpartition(".")[2] for name in narrow if name.startswith("model.layers.0.")} >= {"q_proj", "o_proj"}
    assert not [name for name in narrow if name.endswith(("gate", "router"))]


@pytest.mark.parametrize(("device_id", "lacks"), [("h100-sxm-80", "mxfp8"), ("mi300x-192", "blockwise")])
def test_scales_of_fp8_that_a_devices_matrix_units_lack_are_refused(device_id: str, lacks: str) -> None:
    check_recipe(device(device_id), "delayed")
    with pytest.raises(UsageError, match=rf"\({device_id}\) has no {lacks} scales of fp8; --fp8-recipe takes delayed"):
        check_recipe(device(device_id), lacks)


def test_every_recipe_has_a_source_and_a_confidence_and_costs_no_less_than_none() -> None:
    assert set(recipes()) == {*RECIPES, "nvfp4"}
    assert all(recipe.product >= 1 and recipe.amax_passes >= 0 for recipe in recipes().values())
    assert all(row["source"] and row["confidence"] in ("high", "medium", "low") for row in tables.rows("recipes"))


def test_adam_in_mixed_precision_moves_28_bytes_a_parameter_and_in_fp32_28() -> None:
    on = device(A100)
    share = tables.traffic()["optimizer", "step"].fraction[1]
    launches = 4 * tables.overhead("kernel_ns")[1]
    moved_ns = ceil(launches + 28 * 10**9 / (on.memory_gbs * share))
    assert optimizer_step_ns(2 * 10**9, on, "adam", "bf16").central_ns == moved_ns
    assert optimizer_step_ns(4 * 10**9, on, "adam", "fp32").central_ns == moved_ns
    assert optimizer_step_ns(2 * 10**9, on, "none").high_ns == 0


def test_the_optimizers_priced_are_those_of_the_cost_model() -> None:
    for name in OPTIMIZERS:
        assert optimizer_step_ns(10**6, device(A100), name).low_ns >= 0
    with pytest.raises(UsageError, match="optimizer 'sophia'; allowed are"):
        optimizer_step_ns(10**6, device(A100), "sophia")


def test_fewer_bits_of_states_are_fewer_bytes_and_less_time() -> None:
    names = ("adam", "adam-16bit", "adam-8bit")
    assert [OPTIMIZERS[name].state_bytes(4) for name in names] == [8, 4, 2]
    assert [OPTIMIZERS[name].state_bytes(4) for name in ("lion", "muon", "adafactor")] == [4, 4, 0]
    times = [optimizer_step_ns(10**9, device(A100), name).central_ns for name in names]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 3


def test_muon_multiplies_matrices_five_times_and_nothing_else() -> None:
    """Newton-Schulz: X X' and B X of 2 m m n FLOP each, the square of 2 m m m (Jordan et al., 2024)."""
    assert orthogonal_flop((4096, 1024)) == orthogonal_flop((1024, 4096)) == 5 * (4 * 1024**2 * 4096 + 2 * 1024**3)
    assert orthogonal_flop((8, 64, 32)) == 8 * orthogonal_flop((64, 32))
    assert orthogonal_flop((4096,)) == 0
    flop = orthogonal_flop((4096, 4096))
    plain, products = (optimizer_step_ns(2 * 4096**2, device(A100), "muon", "bf16", f) for f in (0, flop))
    assert products.central_ns >= plain.central_ns + flop / device(A100).tflops["bf16"] / 1000


def test_accumulation_reads_two_gradients_and_writes_one() -> None:
    found = accumulate_ns(10**9, device(A100))
    assert found.low_ns >= 3 * 10**9 / device(A100).memory_gbs
    assert accumulate_ns(0, device(A100)) == Interval(0, 0, 0)


@pytest.mark.parametrize("table", ["achievable", "processors", "tiles", "attention", "traffic", "overheads"])
def test_every_row_of_a_table_has_a_source_and_a_confidence(table: str) -> None:
    for row in tables.rows(table):
        assert row["source"]
        assert row["confidence"] in ("high", "medium", "low")


def test_every_device_of_the_tables_stands_in_the_catalogue_and_every_share_is_at_most_one() -> None:
    known = {row.id for row in devices()} | {"*", "catalogue"}
    assert {row["device"] for name in ("achievable", "processors") for row in tables.rows(name)} <= known
    assert {row.id for row in devices()} <= set(tables.processors())
    for name in ("achievable", "tiles", "attention", "traffic"):
        for row in tables.rows(name):
            assert 0 < float(row["low"]) <= float(row["central"]) <= float(row["high"])
            assert float(row["high"]) <= 1 or row["device"] == "catalogue"


def measured(work: Work | None = None, catalogue: str = A100) -> Profile:
    profile = read_profile(GOLDEN / "profile.json")
    graph = profile.graph
    first, *rest = graph.operators
    operators = (replace(first, work=work), *rest)
    named = replace(profile.device, type="cuda", catalogue=catalogue)
    return replace(profile, device=named, graph=OperatorGraph(graph.name, operators, graph.tensors, graph.parameters))


def test_a_scaled_profile_multiplies_a_time_by_the_ratio_of_the_estimates() -> None:
    work = Work("matmul", "column", 4096, 4096, 4096)
    profile = measured(work)
    scaled = scale_profile(profile, H100)
    size = profile.microbatch_sizes[0]
    before, after = (estimate(work, device(name), "fp32", size).forward.central_ns for name in (A100, H100))
    assert scaled.times[0].forward_ns[0] == round(profile.times[0].forward_ns[0] * after / before)
    assert scaled.device.catalogue == H100
    assert list(scaled.origin.estimated) == [
        "times measured on a100-sxm-80 are scaled to h100-sxm-80 by their roofline estimates"
    ]
    assert scaled.graph.fingerprint == profile.graph.fingerprint


def test_a_profile_scaled_to_its_own_device_is_the_profile() -> None:
    profile = measured()
    assert scale_profile(profile, A100) is profile


def test_a_profile_of_a_device_without_a_catalogue_id_is_not_scaled() -> None:
    with pytest.raises(UsageError, match="has no catalogue id"):
        scale_profile(measured(catalogue=""), H100)
    with pytest.raises(InvalidInput, match="float64"):
        scale_profile(replace(measured(), dtype="float64"), H100)


@pytest.mark.parametrize(("flop", "kept"), [(10**15, "tflops"), (0, "memory_gbs")])
def test_an_operator_that_does_not_say_its_work_is_scaled_by_peak_or_by_bandwidth(flop: int, kept: str) -> None:
    profile = measured()
    graph = profile.graph
    first, *rest = graph.operators
    sizes = tuple(10**12 * size for size in profile.microbatch_sizes) if not flop else first.output_bytes
    operators = (replace(first, flop=flop, output_bytes=sizes), *rest)
    times = replace(profile.times[0], forward_ns=tuple(10**9 * size for size in profile.microbatch_sizes))
    named = OperatorGraph(graph.name, operators, graph.tensors, graph.parameters)
    large = replace(profile, graph=named, times=(times, *profile.times[1:]))
    ratio = scale_profile(large, H100).times[0].forward_ns[-1] / large.times[0].forward_ns[-1]
    slow, fast = device(A100), device(H100)
    expected = slow.tflops["fp32"] / fast.tflops["fp32"] if kept == "tflops" else slow.memory_gbs / fast.memory_gbs
    assert ratio == pytest.approx(expected, rel=0.01)


def problem(profile: Profile, catalogue: str) -> Problem:
    kind = DeviceType("some", 2**34, "cuda", catalogue)
    return Problem(profile, uniform_cluster(kind, 2, None), 2, 64)


def test_a_cluster_of_another_catalogue_device_is_planned_with_scaled_times_and_says_so() -> None:
    profile = measured()
    found = problem(profile, H100)
    assert found.measured(1).forward_ns == tuple(t.forward_ns[0] for t in scale_profile(profile, H100).times)
    assert estimated(found, 1) == (
        "times measured on a100-sxm-80 are scaled to h100-sxm-80 by their roofline estimates",
    )


def test_a_profile_of_estimates_is_said_to_be_one() -> None:
    profile = replace(measured(), origin=Origin(estimated=(ROOFLINE,)))
    assert estimated(problem(profile, ""), profile.microbatch_sizes[0]) == (
        "the profile's times are roofline estimates",
    )


@pytest.mark.parametrize(("of_profile", "of_cluster"), [("", H100), (A100, ""), (A100, A100)])
def test_an_unknown_or_equal_catalogue_id_leaves_the_profile_as_measured(of_profile: str, of_cluster: str) -> None:
    profile = measured(catalogue=of_profile)
    found = problem(profile, of_cluster)
    assert found.profile_on(found.machines.device_of(0)) is profile
    assert estimated(found, profile.microbatch_sizes[0]) == ()


def test_a_micro_batch_size_outside_the_measured_ones_is_said_to_be_an_estimate() -> None:
    profile = measured()
    low, high = profile.microbatch_sizes[0], profile.microbatch_sizes[-1]
    assert estimated(problem(profile, ""), 2 * high) == (
        f"times at micro-batch size {2 * high} are continued from the measured sizes {low} to {high}",
    )


def test_a_plan_says_in_its_assumptions_why_its_times_are_estimates() -> None:
    profile = measured()
    assert assumptions(problem(profile, A100), profile.microbatch_sizes[0]).estimated == ()
    assert assumptions(problem(profile, H100), profile.microbatch_sizes[0]).estimated == (
        "times measured on a100-sxm-80 are scaled to h100-sxm-80 by their roofline estimates",
    )
