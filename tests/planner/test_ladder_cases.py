"""The ladder on models people ask about: which strategy they get, why the others lost, and what it costs."""

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from costmodel.architectures.command import make
from costmodel.machines.cluster import read_cluster
from costmodel.model.profile import OperatorTimes, Profile
from planner import Effort, Plan, Problem, Space
from planner.answer.decide import plan
from planner.plan import Rung
from planner.plan.rung import RUNGS, rung
from planner.question.problem import SIMPLICITY
from tests.support.described_models import described
from tests.support.offers_of_memory import GIB, WHOLE_OPERATORS, asked, cluster


def walked(**options: object) -> Problem:
    """The walk's model, one stage."""
    machines = cluster(4, host_gib=4, price=2.0)
    return asked(described("llama"), machines, 64, microbatch_size=4, max_stages=1, **options)


@cache
def walk() -> tuple[Plan, ...]:
    """Plans of a small Llama, each with a byte less than the one before peaks at."""
    problem, found = walked(), []
    limit = 80 * GIB
    for _ in range(6):
        found.append(plan(replace(problem, memory_limit_bytes=limit)))
        limit = max(found[-1].prediction.peak_memory_bytes) - 1
    return tuple(found)


def rows(found: Plan) -> dict[str, Rung]:
    """The first row of each strategy."""
    return {each.strategy: each for each in reversed(found.rungs)}


@pytest.mark.parametrize(("num_devices", "strategy"), [(8, "data-parallel"), (1, "single")])
def test_yolo_is_trained_data_parallel_and_alone_on_one_device(num_devices: int, strategy: str) -> None:
    found = plan(Problem(yolo(), None, num_devices, 64, 2, effort=Effort(2.0, 0.0)))
    assert rung(found) == strategy
    assert found.prediction.step_time_ns <= (1 + SIMPLICITY) * found.search.best_step_time_ns


@cache
def yolo() -> Profile:
    return make("zoo:yolo:small", "h100-sxm-80", (2,))[0]


def tuned(profile: Profile, names: tuple[str, ...]) -> Profile:
    """The same model of which only parameters so named are trained; the others have no W."""
    graph = profile.graph
    parameters = tuple(replace(p, trainable=any(name in p.name for name in names)) for p in graph.parameters)
    trained = {p.name for p in parameters if p.trainable}
    times = tuple(
        each if trained.intersection(operator.parameters) else without_w(each)
        for operator, each in zip(graph.operators, profile.times, strict=True)
    )
    return replace(profile, graph=replace(graph, parameters=parameters), times=times)


def without_w(times: OperatorTimes) -> OperatorTimes:
    return replace(times, backward_weight_ns=(0,) * len(times.backward_weight_ns))


@pytest.mark.parametrize(
    ("strategy", "space"),
    [
        ("data-parallel", Space(data=4, zero=0)),
        ("zero-3", Space(data=4, zero=3)),
        ("pipeline", Space(stages=4, data=1)),
        ("tensor", Space(tensor=4)),
    ],
)
def test_frozen_weights_of_a_fine_tune_cost_no_w_no_gradient_and_no_states(strategy: str, space: Space) -> None:
    profile = tuned(described("llama"), ("q_proj", "v_proj"))
    trained = sum(p.size_bytes for p in profile.graph.parameters if p.trainable)
    problem = asked(profile, cluster(4), 64, microbatch_size=4, space=replace(space, context=1, recompute="none"))
    found = plan(problem)
    assert strategy in rung(found)
    terms = [dict(stage.cost.memory_terms) for stage in found.stages]
    shards = 4 if strategy == "zero-3" else 1
    held = {name: sum(each[name] for each in terms) * shards for name in ("gradients", "optimizer")}
    whole = trained // (4 if strategy == "tensor" else 1)
    assert held == {"gradients": whole, "optimizer": 4 * whole}  # bf16 gradients, two states in fp32
    if strategy in ("data-parallel", "pipeline"):
        slower = problem.training.slower["matmul"]  # the trainer's kernels against the profile's estimates
        w_ns = sum(round(slower * times.backward_weight_ns[-1]) for times in profile.times)
        spent_ns = sum(stage.cost.backward_weight_ns for stage in found.stages)
        assert abs(spent_ns - w_ns - added(profile, problem)) <= len(found.stages)  # rounded for each stage
    full = plan(replace(problem, profile=described("llama")))
    assert found.prediction.step_time_ns < full.prediction.step_time_ns


def added(profile: Profile, problem: Problem) -> int:
    """What adding up the gradients of a micro-batch takes."""
    return problem.measured(4).accumulation.part_ns(sum(p.size_bytes for p in profile.graph.parameters if p.trainable))


def test_a_w_frees_nothing_where_the_weights_are_frozen() -> None:
    """An operator's inputs, and its outputs' gradients, stay for its W alone: with frozen weights they leave with I."""
    late = []
    for names in (("proj",), ("q_proj",), ()):
        profile = tuned(described("llama"), ("lm_head", *names))
        (stage,) = plan(asked(profile, cluster(1), 4, microbatch_size=4, space=Space(recompute="none"))).stages
        late.append(stage.cost.weight_activation_bytes)
    inputs = 2 * 4 * 128 * 256  # of one operator as wide as the model: bf16, four samples of 128 tokens
    logits = 2 * 4 * 128 * 1000
    assert late[0] > late[1] == 9 * inputs + 8 * inputs + logits  # eight layers' and the head's
    assert late[2] == inputs + logits


def test_memory_between_what_ddp_and_zero_1_need_is_answered_by_zero_1() -> None:
    problem = asked(described("llama"), cluster(4), 64, microbatch_size=4)
    needs = []
    for zero in (0, 1):
        fixed = replace(WHOLE_OPERATORS, stages=1, data=4, zero=zero, recompute="none")
        needs.append(max(plan(replace(problem, space=fixed)).prediction.peak_memory_bytes))
    for limit in (needs[0] - 1, sum(needs) // 2, needs[1]):
        assert rung(plan(replace(problem, memory_limit_bytes=limit))) == "zero-1"
    assert rung(plan(replace(problem, memory_limit_bytes=needs[0]))) == "data-parallel"


def test_less_memory_never_makes_the_step_shorter_and_leads_up_the_ladder() -> None:
    best = [found.search.best_step_time_ns for found in walk()]
    assert best == sorted(best)
    steps = [found.prediction.step_time_ns for found in walk()]
    assert all(after >= before / (1 + SIMPLICITY) for before, after in pairwise(steps))
    assert [rung(found) for found in walk()][:4] == ["data-parallel", "zero-1", "zero-2", "zero-3"]
    assert any("offload" in each.strategy for each in walk()[-1].rungs if not each.over_memory_bytes)


def test_the_headline_is_a_plan_that_a_trainer_runs_and_what_nobody_runs_stands_beside() -> None:
    unrun = [found.extra.get("best_unrun") for found in walk()]
    assert all(found.runs_on for found in walk())
    assert unrun[0] is None
    assert isinstance(unrun[-1], dict)
    assert unrun[-1]["step_time_ns"] == walk()[-1].search.best_step_time_ns < walk()[-1].prediction.step_time_ns
    assert "a trainer runs it, unlike that" in str(walk()[-1].extra["choice"])
    assert any("no trainer known here runs it" in each.why for each in walk()[-1].rungs)


def test_where_nobody_runs_what_is_fixed_the_best_of_it_is_returned() -> None:
    found = plan(walked(space=replace(WHOLE_OPERATORS, zero=2, offload="optimizer", recompute="selective")))
    assert found.runs_on == ()
    assert "best_unrun" not in found.extra
    assert found.prediction.step_time_ns <= found.search.best_step_time_ns * (1 + SIMPLICITY)


def test_each_rung_says_what_it_lacks_or_how_much_slower_it_is() -> None:
    for found in walk():
        limit = int(re.findall(r"(\d+) bytes a rank", found.search.scope)[0])
        chosen = found.prediction.step_time_ns
        assert {"single", "data-parallel", "zero-1", "zero-2", "zero-3"} <= {each.strategy for each in found.rungs}
        for each in found.rungs:
            assert each.over_memory_bytes == max(0, each.peak_memory_bytes - limit)
            if each.over_memory_bytes:
                lacking = float(re.findall(r"over the memory by ([\d.]+) GiB", each.why)[0])
                assert 0 <= lacking - each.over_memory_bytes / GIB <= 0.01
                assert each.runs_on == ()
            elif not each.why.startswith("chosen"):
                part = each.step_time_ns / chosen - 1
                said = re.match(r"([\d.]+)% (faster|slower)", each.why)
                assert bool(said) == bool(part)
                if said:
                    assert float(said[1]) == pytest.approx(abs(100 * part), abs=0.051)
                    assert (said[2] == "faster") == (part < 0)


def test_a_strategy_fixed_by_flag_takes_what_its_rung_says() -> None:
    found = walk()[1]
    for name, zero in (("data-parallel", 0), ("zero-1", 1), ("zero-2", 2), ("zero-3", 3)):
        fixed = replace(WHOLE_OPERATORS, stages=1, data=4, zero=zero, offload="none")
        alone = plan(walked(space=fixed, memory_limit_bytes=int(limit_of(found))))
        assert alone.prediction.step_time_ns == rows(found)[name].step_time_ns
        assert alone.prediction.step_time_ns >= found.search.best_step_time_ns


def limit_of(found: Plan) -> str:
    return str(re.findall(r"(\d+) bytes a rank", found.search.scope)[0])


def test_memory_that_is_said_to_make_a_rung_better_does() -> None:
    told = 0
    for found in walk():
        for each in found.rungs:
            said = re.match(r"([\d.]+) GiB more memory a device: ([\d.]+)% faster then", each.better_if)
            if not said:
                continue
            told += 1
            zero = {"data-parallel": 0, "zero-1": 1, "zero-2": 2, "zero-3": 3}[each.strategy]
            more = int(limit_of(found)) + round(float(said[1]) * GIB)
            fixed = replace(WHOLE_OPERATORS, stages=1, data=4, zero=zero, offload="none")
            better = plan(walked(space=fixed, memory_limit_bytes=more))
            assert better.prediction.step_time_ns < found.prediction.step_time_ns
    assert told


@pytest.mark.parametrize(("gbs", "batch"), [(2.0, 16), (16.0, 16)])
def test_links_and_batches_that_are_said_to_make_a_rung_better_do(gbs: float, batch: int) -> None:
    """On slow links a pipeline is chosen, and data parallelism gains by faster ones; ZeRO-1 by a larger batch."""
    problem = asked(described("gpt2"), cluster(4, gbs=gbs), batch, microbatch_size=4)
    found, told = plan(problem), 0
    again: dict[str, dict[str, Rung]] = {}
    for each in found.rungs:
        change = each.better_if.split(":")[0] if each.strategy in RUNGS else ""
        if change.startswith("a batch of"):
            changed = replace(problem, global_batch=int(change.split()[-1]))
        elif change.startswith("links"):
            changed = replace(problem, cluster=cluster(4, gbs=float(change.split()[1]) * gbs))
        else:
            continue
        told += 1
        better = again.setdefault(change, rows(plan(changed)))
        # a mixture that is passed over is not on the ladder: a bound says that it is no better than the best
        chosen = better.get(rung(found))
        assert not chosen or better[each.strategy].step_time_ns < chosen.step_time_ns
    assert told


def test_a_million_samples_cost_what_the_devices_used_do() -> None:
    found = walk()[0]
    assert {each.devices_used for each in found.rungs} >= {1, 4}
    for each in found.rungs:
        cost = 2.0 * each.devices_used / 3600 * 1e6 / each.samples_per_s
        assert each.cost_per_million_samples == pytest.approx(cost)
    unpriced = plan(asked(described("llama"), cluster(2), 8, microbatch_size=4))
    assert {each.cost_per_million_samples for each in unpriced.rungs} == {None}


def test_a_price_in_a_cluster_file_is_read(tmp_path: object) -> None:
    path = f"{tmp_path}/cluster.toml"
    lines = ['format = "penstock-cluster"', "version = 1", "[[device]]", 'name = "a"', "memory_gib = 1",
             "price_per_hour = 2.5", "[[host]]", 'device = "a"', "devices = 1"]  # fmt: skip
    with open(path, "w") as file:
        file.write("\n".join(lines))
    assert read_cluster(path).device_of(0).price_per_hour == 2.5


def test_a_ladder_shows_tensor_parallelism_when_the_time_is_over_with_the_first_plans() -> None:
    """On a busy machine Qwen3-30B-A3B on 64 devices had mixtures with experts alone in its ladder."""
    found = plan(asked(described("mixtral"), cluster(8), 64, space=Space(), effort=Effort(0.01)))
    assert any("tensor" in each.strategy and not each.over_memory_bytes for each in found.rungs)
