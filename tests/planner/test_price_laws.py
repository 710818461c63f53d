"""Laws of prices over the catalogue: what a device, a link or a precision may never do to a step."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel.architectures.builder import PRECISIONS as STORED
from costmodel.architectures.command import make
from costmodel.architectures.describe import describe_config
from costmodel.architectures.estimate import estimated_profile
from costmodel.architectures.table import find
from costmodel.calibration import Calibration
from costmodel.machines import catalogue
from costmodel.machines.catalogue import PRECISIONS
from costmodel.model.profile import Profile
from planner.candidate.evaluate import Evaluator
from planner.candidate.fixed import fixed_candidate, fixed_evaluator
from planner.question.problem import Problem
from planner.question.space import Space

FEW = settings(max_examples=8, deadline=None)
MODELS = ("llama3-8b", "mixtral-8x7b")
SPACES = (
    Space(stages=1, data=8, tensor=1, context=1, zero=0, recompute="none"),
    Space(stages=1, data=8, tensor=1, context=1, zero=3, recompute="none"),
    Space(stages=2, data=2, tensor=2, context=1, zero=1, recompute="full"),
    Space(stages=1, data=1, tensor=8, context=1, recompute="none", sequence_parallel=True),
)
UNCALIBRATED = Calibration({})

devices = st.sampled_from([row.id for row in catalogue.devices()])
spaces = st.sampled_from(SPACES)
models = st.sampled_from(MODELS)


@cache
def described(model: str, device: str, precision: str) -> Profile:
    return make(model, device, (1,), 2048, precision)[0]


def price(problem: Problem) -> tuple[int, int]:
    """Return step time and largest peak of a problem with every choice fixed."""
    evaluator: Evaluator = fixed_evaluator(problem)
    times = evaluator.simulate(fixed_candidate(evaluator)).times
    return times.step_time_ns, max(times.peak_memory_bytes)


def problem(profile: Profile, space: Space, precision: str = "", num_devices: int = 8, batch: int = 16) -> Problem:
    return Problem(
        profile, None, num_devices, batch, microbatch_size=1, schedule="1f1b", space=space, precision=precision,
        target="any", trainer="megatron",
    )  # fmt: skip


FOLDER = Path(mkdtemp())
KEYS = (
    "memory_gib_label", "memory_gbs", "scaleup_link", "scaleup_links", "scaleup_gbs", "scaleup_domain", "pair_gbs",
    "switch_share", "pcie_link", "host_network_gbs", "host_devices", "matmul_fraction", "fp8_matmul_fraction",
    "overlap_slowdown",
)  # fmt: skip


def device_file(device: str, number: int, **changes: float) -> str:
    """Write a device of the catalogue, with other figures, as a file that a user may give."""
    row = catalogue.device(device)
    values: dict[str, object] = {name: getattr(row, name) for name in KEYS}
    values |= {f"{name}_tflops": rate for name, rate in row.tflops.items()}
    values |= {
        "id": f"law-{number}",
        "source": f"{device}, changed",
        "peer_to_peer": "yes" if row.peer_to_peer else "no",
    }
    values |= {name: factor * float(str(values[name])) for name, factor in changes.items()}
    path = FOLDER / f"{len(list(FOLDER.iterdir()))}.toml"
    path.write_text(
        "".join(f"{k} = {v!r}\n" if not isinstance(v, str) else f'{k} = "{v}"\n' for k, v in values.items())
    )
    return str(path)


def step_ns(device: str, model: str, space: Space, precision: str = "bf16", num_devices: int = 8) -> int:
    space = replace(space, expert=space.expert if model != MODELS[0] else 1)
    return price(problem(make(model, device, (1,), 2048, precision)[0], space, num_devices=num_devices))[0]


@FEW
@given(models, devices, st.sampled_from(PRECISIONS), st.sampled_from(PRECISIONS), spaces)
def test_a_model_described_in_a_precision_costs_what_planning_it_in_that_precision_does(
    model: str, device: str, described_in: str, asked: str, space: Space
) -> None:
    if not {described_in, asked} <= set(catalogue.device(device).tflops):
        return
    own, other = (described(model, device, precision) for precision in (asked, described_in))
    assert price(problem(own, space)) == price(problem(other, space, asked)) == price(problem(own, space, asked))


@pytest.mark.parametrize("precision", ["tf32", "fp8"])
def test_a_precision_that_no_dtype_names_is_priced_once(precision: str) -> None:
    """`model --precision tf32`, then `plan`, took the ratio of tf32 to fp32 twice: a share of peak of 1.48."""
    profile = described("llama3-8b", "h100-sxm-80", precision)
    flop = 3 * 16 * sum(operator.flop for operator in profile.graph.operators)
    peak = 8 * catalogue.device("h100-sxm-80").tflops[precision] * 1000
    assert profile.precision == precision
    assert price(problem(profile, SPACES[1]))[0] > flop / peak


FIGURES = ("bf16_tflops", "memory_gbs", "scaleup_gbs", "host_network_gbs", "memory_gib_label", "pair_gbs")
networked = st.sampled_from([row.id for row in catalogue.devices() if row.host_network_gbs and "bf16" in row.tflops])
factors = st.floats(1.0, 8.0)
TWO_HOSTS = (
    Space(stages=1, data=16, tensor=1, context=1, zero=0, recompute="none"),
    Space(stages=1, data=16, tensor=1, context=1, zero=3, recompute="none"),
    Space(stages=2, data=1, tensor=8, context=1, recompute="none", sequence_parallel=True),
    Space(stages=2, data=1, tensor=8, context=1, recompute="none", sequence_parallel=False),
    Space(stages=1, data=16, tensor=1, context=1, zero=1, expert=8, recompute="none"),
)


@FEW
@given(networked, models, st.sampled_from(TWO_HOSTS), factors)
@example("b200-sxm-180", "mixtral-8x7b", TWO_HOSTS[2], 2.0)  # sums that slower products hid were no calls of the host
@pytest.mark.parametrize("figure", FIGURES)
def test_a_better_figure_never_makes_a_step_slower(
    figure: str, device: str, model: str, space: Space, factor: float
) -> None:
    before, after = device_file(device, 1), device_file(device, 2, **{figure: factor})
    assert step_ns(after, model, space, num_devices=16) <= step_ns(before, model, space, num_devices=16)


@FEW
@given(st.sampled_from(PRECISIONS), networked, models, st.sampled_from(TWO_HOSTS), factors)
@example("nvfp4", "gb300-nvl72", "mixtral-8x7b", TWO_HOSTS[0], 2.0)
@example("fp8", "h100-sxm-80", "llama3-8b", TWO_HOSTS[3], 2.0)
def test_a_higher_peak_at_one_precision_is_never_slower_at_any(
    precision: str, device: str, model: str, space: Space, factor: float
) -> None:
    if precision not in catalogue.device(device).tflops:
        return
    before, after = device_file(device, 1), device_file(device, 2, **{f"{precision}_tflops": factor})
    for asked in dict.fromkeys((precision, "bf16")):
        assert step_ns(after, model, space, asked, 16) <= step_ns(before, model, space, asked, 16)


@FEW
@given(networked, models, st.sampled_from(TWO_HOSTS))
def test_switches_that_sum_are_never_slower_than_those_that_do_not(device: str, model: str, space: Space) -> None:
    before, after = (device_file(device, i, **({"switch_share": 0.0} if i == 1 else {})) for i in (1, 2))
    assert step_ns(after, model, space, num_devices=16) <= step_ns(before, model, space, num_devices=16)


@FEW
@given(networked, models, spaces)
def test_equal_figures_give_equal_times_whatever_they_are_called(device: str, model: str, space: Space) -> None:
    first, second = (step_ns(device_file(device, number), model, space) for number in (1, 2))
    assert first == second


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("one", "other"), [("b200-sxm-180", "b300-sxm-288"), ("gb200-nvl72", "gb300-nvl72")])
def test_sisters_of_equal_figures_take_as_long_where_no_constant_was_fitted_on_either(
    one: str, other: str, space: Space
) -> None:
    """B300 was 44 % above B200: the one stands on its data sheet, the other on constants."""
    profiles = (make("llama3-8b", name, (1,), 2048, "bf16", "", UNCALIBRATED)[0] for name in (one, other))
    first, second = (price(replace(problem(profile, space), calibration=UNCALIBRATED)) for profile in profiles)
    assert first == second


@FEW
@given(st.integers(1, 12), st.integers(1, 12), networked, spaces)
def test_more_blocks_never_cost_less(few: int, more: int, device: str, space: Space) -> None:
    config = find("llama3-8b").config()
    times = []
    for number in sorted((2 * few, 2 * more)):
        values = replace(config, values={**config.values, "num_hidden_layers": number})
        known = describe_config("law", values, tokens=2048, precision="bf16", microbatch_sizes=(1,))
        row = catalogue.device(device)
        profile = estimated_profile(known.graph, row, "bf16", STORED["bf16"].dtype, (1,), {}, {})
        times.append(price(problem(profile, space)))
    (few_ns, few_bytes), (more_ns, more_bytes) = times
    assert few_ns <= more_ns
    assert few_bytes <= more_bytes


def test_fewer_groups_of_experts_in_a_routers_reach_cost_less() -> None:
    """DeepSeek-V3's tokens take experts of 4 of 8 groups: of 8 hosts no more than 4 get copies."""
    config, row, times = find("deepseek-v3").config(), catalogue.device("h100-sxm-80"), []
    space = Space(stages=1, data=64, tensor=1, context=1, zero=1, expert=64, recompute="full")
    for reached in (1, 2, 4, 8):
        values = {**config.values, "num_hidden_layers": 4, "n_group": 8, "topk_group": reached}
        known = describe_config(
            "law", replace(config, values=values), tokens=2048, precision="bf16", microbatch_sizes=(1,)
        )
        profile = estimated_profile(known.graph, row, "bf16", STORED["bf16"].dtype, (1,), {}, {})
        asked = replace(problem(profile, space, num_devices=64, batch=64), habits={"dispatcher": "flex"})
        times.append(price(asked)[0])
    assert times == sorted(set(times))


def test_what_actions_work_with_counts_once_on_a_rank_of_several_stages() -> None:
    space = Space(stages=2, chunks=2, data=4, tensor=1, context=1, zero=1, recompute="full")
    asked = replace(problem(described("llama3-8b", "h100-sxm-80", "bf16"), space), schedule="interleaved-1f1b")
    evaluator = fixed_evaluator(asked)
    priced = evaluator.simulate(fixed_candidate(evaluator)).priced.costs
    for name in asked.training.once_a_rank:
        held = [dict(stage.memory_terms).get(name, 0) for stage in priced.stages]
        for place in range(2):
            assert sum(size > 0 for size in held[place::2]) <= 1, name
    assert all(stage.static_bytes == sum(size for _, size in stage.memory_terms) for stage in priced.stages)
