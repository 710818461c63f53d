"""A job with every choice fixed: what is in its plan, that its file tells the same, who takes it, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.architectures.command import make
from costmodel.calibration import published
from costmodel.errors import InvalidInput, NoPlanFits, PenstockError, UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob
from costmodel.stages.strategies.memory import COMMUNICATOR_BYTES, MESSAGES_BYTES
from planner.answer.decide import plan as plan_any
from planner.checker import check_plan
from planner.commands import main
from planner.plan import Plan, read_plan, write_plan
from planner.plan.replay import replay
from planner.question.effort import Effort
from planner.question.pins import read_pins
from planner.question.problem import Problem
from planner.question.space import Space
from planner.report.summary.rates import mfu, tokens_per_s
from planner.search.state.prepared import PreparedProblem
from tests.support.described_models import described
from tests.support.jobs import job
from tests.support.random_profiles import branches, chain, profile_of, u_net
from tests.support.schema_corpus import validator

SHORT = Effort(60.0, 0.0)
NO_HOST = published().with_values({"host.torchtitan": 0.0, "host.megatron": 0.0})
"""Where hosts take nothing, not even for messages, which are no part of a stage's own price."""

JOBS = [
    ("llama", 8, 16, {"tensor": 2, "stages": 2, "data": 2}),
    ("llama", 16, 16, {"tensor": 2, "stages": 2, "context": 2, "sequence_parallel": True, "recompute": "selective"}),
    ("llama", 8, 16, {"stages": 2, "chunks": 2, "data": 2, "tensor": 2, "recompute": "full", "optimizer": "adam"}),
    ("llama", 8, 16, {"zero": 3, "optimizer": "adam"}),
    ("llama", 4, 8, {"stages": 1, "context": 2, "zero": 2, "optimizer": "sgd"}),
    ("gpt2", 8, 16, {"stages": 4, "optimizer": "adam", "zero": 1}),  # tied embedding
    ("gpt2", 4, 8, {"stages": 2, "tensor": 2, "planner": "uniform"}),
    ("gpt2", 4, 8, {"stages": 4, "planner": "parameters", "schedule": "zb-h1"}),
    ("mixtral", 4, 8, {"stages": 1, "expert": 4, "optimizer": "adam"}),
    ("mixtral", 8, 8, {"stages": 2, "expert": 2, "tensor": 2}),
]


@pytest.mark.parametrize(("model", "devices", "batch", "choices"), JOBS)
def test_the_checker_accepts_the_plan_and_its_file_simulates_to_the_same(
    model: str, devices: int, batch: int, choices: dict[str, object], tmp_path: Path
) -> None:
    plan = job(model, devices, batch, **choices)
    assert check_plan(plan, described(model).graph) == ()
    write_plan(tmp_path / "plan.json", plan)
    again = read_plan(tmp_path / "plan.json")
    assert again == plan
    assert validator("plan").is_valid(json.loads((tmp_path / "plan.json").read_text()))
    timeline = replay(again)
    assert timeline.step_time_ns == plan.prediction.step_time_ns == plan.search.objective
    assert max(timeline.peak_memory_bytes) == max(plan.prediction.peak_memory_bytes)
    assert len(plan.orders) == devices


def test_replica_d_works_on_micro_batches_k_data_plus_d_and_all_its_ranks_alike() -> None:
    plan = job("llama", 8, 16, tensor=2, stages=2, data=2, microbatch_size=1)
    assert [stage.ranks for stage in plan.stages] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert plan.blocks == ((0, 1), (2, 3), (4, 5), (6, 7))
    for block, replica in zip(plan.blocks, (0, 1, 0, 1), strict=True):
        forwards = {tuple(text for text in plan.orders[rank] if "F" in text and "_" not in text) for rank in block}
        stage = block[0] // 4
        assert forwards == {tuple(f"{stage}F{k}" for k in range(replica, 16, 2))}


def test_a_stage_costs_what_its_strategy_says() -> None:
    plan = job("llama", 8, 16, tensor=2, stages=2, data=2, microbatch_size=2, optimizer="adam", schedule="1f1b",
               target="torchtitan", zero=0, calibration=NO_HOST)  # fmt: skip
    profile = described("llama")
    config = StageConfig(data=2, tensor=2)
    assert {stage.config for stage in plan.stages} == {config}
    model = StrategyModel(profile, plan.cluster, 2, TrainingJob.of("torchtitan", "bf16", "adam", calibration=NO_HOST))
    operators = range(len(plan.stages[0].operators))
    expected = model.stage(operators, config, (0, 1, 2, 3), num_microbatches=4)
    assert plan.stages[0].cost == expected
    names = [name for name, _ in plan.stages[0].cost.memory_terms]
    assert names[:4] == ["parameters", "gradients", "optimizer", "master_weights"]
    terms = model.terms(operators, config, (0, 1, 2, 3), 4, in_flight=2)
    prediction = plan.prediction
    beside = (
        prediction.peak_memory_bytes[0] - terms.point_bytes
    )  # what messages hold, of which an allocator wastes, too
    assert prediction.peak_memory_upper_bytes[0] - prediction.peak_memory_bytes[0] == (
        terms.upper_bytes - terms.point_bytes + round(terms.fragmenting * beside)
        + MESSAGES_BYTES + COMMUNICATOR_BYTES  # one neighbour, and all ranks
    )  # fmt: skip


def test_an_edge_carries_a_ranks_part_and_takes_what_its_slowest_pair_takes() -> None:
    whole = job("llama", 4, 8, stages=2, data=2, microbatch_size=1, target="torchtitan")
    divided = job(
        "llama", 16, 8, stages=2, data=2, tensor=2, sequence_parallel=True, context=2, microbatch_size=1,
        target="torchtitan",
    )  # fmt: skip
    tensor_bytes = 128 * 256 * 2  # tokens x width x bf16
    assert whole.edges[0].size_bytes % tensor_bytes == 0
    assert divided.edges[0].size_bytes == whole.edges[0].size_bytes // 4
    pairs = [(rank, rank + 8) for rank in range(8)]
    size = divided.edges[0].size_bytes
    assert divided.edges[0].p2p_ns == max(divided.cluster.p2p_ns(a, b, size) for a, b in pairs)


def test_chunks_are_placed_in_a_loop_and_run_interleaved() -> None:
    plan = job("llama", 4, 8, stages=2, chunks=2, data=2, microbatch_size=1, target="torchtitan")
    assert plan.schedule == "interleaved-1f1b"
    assert [stage.ranks for stage in plan.stages] == [(0, 1), (2, 3), (0, 1), (2, 3)]
    assert plan.runs_on == ("torchtitan", "megatron")


def test_stages_for_a_trainer_of_layers_hold_whole_ones_and_equally_many_where_that_costs_nothing() -> None:
    plan = job("llama", 4, 8, stages=4, target="megatron")
    layers = [{name.split(".")[2] for name in stage.operators if ".layers." in name} for stage in plan.stages]
    assert sum(map(len, layers)) == len(set().union(*layers)) == 8
    alike = profile_of([1000] * 8, [(i, i + 1) for i in range(7)])
    found = job(alike, 4, 8, stages=4)
    assert [len(stage.operators) for stage in found.stages] == [2, 2, 2, 2]


def test_tied_parameters_are_summed_between_places_after_the_replicas() -> None:
    plan = job("gpt2", 4, 8, stages=4, microbatch_size=2)
    sums = [sum(text.endswith("REDUCE") for text in order) for order in plan.orders]
    assert sums == [1, 0, 0, 1]  # embedding and head
    assert plan.stages[0].cost.reduce_ns == plan.stages[3].cost.reduce_ns > 0


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"stages": 4}, ("torchtitan", "megatron", "deepspeed")),
        ({"stages": 4, "zero": 1, "devices": 8}, ("megatron", "deepspeed")),
        ({"stages": 2, "data": 2, "zero": 2}, ("torchtitan",)),
        ({"zero": 3}, ("torchtitan", "deepspeed")),
        ({"stages": 4, "recompute": "selective"}, ("torchtitan", "megatron")),
        ({"stages": 2, "context": 2}, ("torchtitan", "megatron")),
        ({"stages": 4, "schedule": "zb-h1"}, ("torchtitan",)),
        ({"stages": 4, "schedule": "gpipe"}, ("torchtitan",)),
    ],
)
def test_runs_on_names_the_trainers_that_take_the_job(choices: dict[str, object], expected: tuple[str, ...]) -> None:
    devices = int(str(choices.get("devices", 4)))
    rest = {name: value for name, value in choices.items() if name != "devices"}
    assert job("llama", devices, 8, target=expected[0] if expected else "any", **rest).runs_on == expected


def test_a_target_makes_the_search_take_what_it_runs() -> None:
    plan = job("llama", 4, 8, stages=2, chunks=2, data=2, target="megatron")
    places, replicas = 2, 2
    assert plan.batch.num_microbatches // replicas % places == 0  # Megatron-LM's rule for interleaved stages


def test_a_job_that_the_executor_runs_is_priced_as_it_runs_it() -> None:
    profile = chain(8)
    plan = job(profile, 4, 16, stages=2, data=2, recompute="full", target="executor")
    assert "executor" in plan.runs_on
    assert check_plan(plan, profile.graph) == ()
    assert any("R" in text and text[-1].isdigit() for text in plan.orders[0])  # the stage's forward again
    assert plan.assumptions.trainer == "executor"


def test_the_executors_price_of_stages_is_that_of_pins() -> None:
    profile = branches(2, 3)
    plan = job(profile, 2, 8, stages=2, data=1)
    assert plan.runs_on[0] == "executor"
    assert check_plan(plan, profile.graph) == ()


@pytest.mark.parametrize(
    ("devices", "batch", "choices", "error", "message"),
    [
        (4, 6, {"data": 4}, UsageError, "does not divide into 4 replicas"),
        (4, 8, {"tensor": 4, "expert": 1, "target": "executor"}, NoPlanFits, "described from shapes"),
        (
            4,
            8,
            {"stages": 4, "schedule": "gpipe", "target": "megatron", "planner": "uniform"},
            NoPlanFits,
            "the schedule gpipe",
        ),
        (4, 8, {"stages": 4, "target": "executor"}, NoPlanFits, "described from shapes"),
        (2, 8, {"stages": 2, "chunks": 2, "schedule": "1f1b"}, UsageError, "runs one stage a rank"),
        (2, 8, {"expert": 2}, UsageError, "has no experts"),
        (
            2,
            8,
            {"stages": 2, "memory_limit_bytes": 10_000_000, "microbatch_size": 4},
            NoPlanFits,
            "bytes less; its first stage holds",
        ),
        (2, 8, {"stages": 2, "max_stages": 1}, UsageError, "--max-stages 1 is below the 2 stages"),
        (16, 16, {"tensor": 16}, UsageError, "has 8 heads"),
        (2, 8, {"zero": 2, "offload": "optimizer"}, UsageError, "its [[host]] names none"),
    ],
)
def test_what_cannot_be_is_refused_with_what_binds(
    devices: int, batch: int, choices: dict[str, object], error: type[PenstockError], message: str
) -> None:
    with pytest.raises(error) as refused:
        job("llama", devices, batch, effort=SHORT, **choices)
    assert message in str(refused.value)


def test_a_precision_that_a_device_lacks_is_refused() -> None:
    kind = DeviceType("v100", 16 * 2**30, "cuda", "v100-sxm2-16")
    cluster = Cluster((kind,), (Host("v100", 2),), (LinkGroup("local", 0, 10.0, 1000),))
    with pytest.raises(UsageError, match="has no bf16"):
        job("llama", 2, 8, stages=2, precision="bf16", cluster=cluster)


def test_on_mixed_devices_each_stage_takes_what_its_own_device_takes_and_the_faster_has_more_layers() -> None:
    kinds = tuple(DeviceType(name, 2**36, "cuda", name) for name in ("h100-sxm-80", "a100-sxm-80"))
    links = (LinkGroup("nvlink", 8, 240.0, 7_000), LinkGroup("net", 0, 25.0, 10_000))
    cluster = Cluster(kinds, tuple(Host(kind.name, 8) for kind in kinds), links)
    fast, slow = (make("llama3-8b", kind.name, (1,))[0] for kind in kinds)
    plan = job(fast, 16, 8, stages=2, tensor=8, cluster=cluster, other_profiles=(slow,), planner="chain",
               calibration=NO_HOST)  # fmt: skip
    assert check_plan(plan, fast.graph) == ()
    on = {cluster.device_of(stage.ranks[0]).name: stage for stage in plan.stages}
    first, second = (on[kind.name] for kind in kinds)
    layers = [{name.split(".")[2] for name in each.operators if ".layers." in name} for each in (first, second)]
    assert len(layers[0]) > len(layers[1])
    model = StrategyModel(slow, cluster, 1, TrainingJob.of("megatron", "bf16", "none", calibration=NO_HOST))
    operators = [slow.graph.index[name] for name in second.operators]
    names = plan.edges[0].tensors if second is plan.stages[1] else ()
    received = [i for i, tensor in enumerate(slow.graph.tensors) if tensor.name in names]
    assert second.cost == model.stage(operators, StageConfig(tensor=8), second.ranks, received, 8)


def test_tokens_a_second_and_mfu_follow_from_the_step_time() -> None:
    plan = job("llama", 4, 8, stages=4, planner="uniform")
    profile = described("llama")
    seconds = plan.prediction.step_time_ns / 1e9
    assert tokens_per_s(plan) == pytest.approx(8 * 128 / seconds)
    flop = sum(operator.flop for operator in profile.graph.operators)
    assert mfu(plan) == pytest.approx(3 * 8 * flop / (4 * 989e12 * seconds))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return job("gpt2", 8, 8, tensor=2, stages=2, data=2, microbatch_size=1)


def test_a_follower_with_another_order_is_found(plan: Plan) -> None:
    orders = list(plan.orders)
    orders[5] = (*orders[5][:2], *orders[5][3:])
    problems = check_plan(replace(plan, orders=tuple(orders)))
    assert [(p.kind, p.place) for p in problems] == [("order", "rank 5, action 2")]
    assert "rank 4, with which it divides its stage" in problems[0].message


def test_a_followers_peak_is_its_leads(plan: Plan) -> None:
    peaks = list(plan.prediction.peak_memory_bytes)
    peaks[1] += 1
    prediction = replace(plan.prediction, peak_memory_bytes=tuple(peaks))
    assert [(p.kind, p.place) for p in check_plan(replace(plan, prediction=prediction))] == [("memory", "rank 1")]


def test_a_rank_in_two_different_blocks_is_refused(plan: Plan) -> None:
    stage = replace(plan.stages[1], ranks=(1, 2, 3, 4, 5, 6, 7, 0))
    with pytest.raises(InvalidInput, match="works with the ranks"):
        replace(plan, stages=(plan.stages[0], stage))


def test_the_slowest_rank_of_a_block_sets_its_pace(plan: Plan) -> None:
    profile = described("gpt2")
    slow = replace(plan.cluster, speeds=((1, 0.5),))
    found = job("gpt2", 8, 8, tensor=2, stages=2, data=2, microbatch_size=1, cluster=slow)
    assert sorted(found.speeds) == [0.5, 1.0, 1.0, 1.0]  # of four blocks; any of them may be first
    assert check_plan(found, profile.graph) == ()
    assert replay(found).step_time_ns == found.prediction.step_time_ns


def test_the_command_prices_the_job_and_every_reader_understands_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from costmodel.model.profile import write_profile

    write_profile(tmp_path / "p.json", described("llama"))
    plan_path = str(tmp_path / "plan.json")
    flags = (
        "--devices 16 --batch 16 --tensor 2 --stages 2 --data 4 --chunks 2 --recompute selective --microbatch-size 1 "
        "--zero 0 --context 1 --target torchtitan"
    )
    assert main(["plan", str(tmp_path / "p.json"), *flags.split(), "-o", plan_path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["strategy"] == "data-parallel+tensor+pipeline"
    assert found["runs_on"] == ["torchtitan", "megatron"]
    assert found["tokens_per_s"] > 0
    assert 0 < found["mfu"] < 1
    assert any("typical host" in reason for reason in found["estimated"])
    assert main(["validate", plan_path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert main(["simulate", plan_path, "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert (simulated["step_time_ns"], simulated["ranks"]) == (found["step_time_ns"], 16)
    assert len(simulated["peak_memory_bytes"]) == 16
    idle_ns = sum(simulated["bubble_causes"].values())  # of all ranks, those in lockstep too
    assert idle_ns == pytest.approx(simulated["bubble_ratio"] * 16 * simulated["step_time_ns"])
    assert main(["compare", plan_path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["step_time_ns"] == found["step_time_ns"]


def test_a_search_for_a_trainer_of_lines_gives_a_line_and_says_who_takes_it() -> None:
    profile = branches(2, 2)
    found = plan_any(
        Problem(
            profile, None, 2, 4, target="deepspeed", schedule="1f1b", space=Space(data=1), optimizer="none",
            effort=SHORT,
        )
    )  # fmt: skip
    assert "deepspeed" in found.runs_on
    assert [(edge.source, edge.target) for edge in found.edges] == [(0, 1)][: len(found.edges)]
    with pytest.raises(NoPlanFits, match=r"--target megatron does not take this plan: (stages of|the schedule)"):
        plan_any(
            Problem(
                profile, None, 2, 4, target="megatron", schedule="gpipe", space=Space(data=1, stages=2), effort=SHORT
            )
        )


def test_a_chain_passes_every_tensor_from_stage_to_next_stage() -> None:
    profile = u_net(3)  # tensors that skip stages
    straight = job(profile, 4, 8, stages=4)
    line = job(profile, 4, 8, stages=4, planner="chain")
    assert any(edge.target > edge.source + 1 for edge in straight.edges)
    assert [(edge.source, edge.target) for edge in line.edges] == [(0, 1), (1, 2), (2, 3)]
    assert check_plan(straight, profile.graph) == check_plan(line, profile.graph) == ()


def test_several_profiles_are_of_one_model_and_of_the_clusters_devices() -> None:
    profile, other = described("llama"), described("llama", "a100-sxm-80")
    with pytest.raises(UsageError, match="a profile was made on 'A100"):
        job(profile, 2, 4, stages=2, other_profiles=(other,))
    with pytest.raises(UsageError, match="of the models llama and gpt2, which differ"):
        job(profile, 2, 4, stages=2, other_profiles=(described("gpt2"),))


def test_a_search_in_another_precision_prices_it_and_is_not_the_executors() -> None:
    profile = chain(4)
    with pytest.raises(UsageError, match="fp16 cannot be estimated"):
        plan_any(Problem(profile, None, 2, 4, precision="fp16", effort=SHORT))
    described_one = plan_any(Problem(described("llama"), None, 2, 4, precision="fp8", effort=SHORT))
    assert described_one.assumptions.precision == "fp8"


def test_llama_3_70b_as_people_run_it_holds_a_tensor_ranks_part_of_its_layers() -> None:
    profile, _ = make("llama3-70b", "h100-sxm-80", (1,))
    plan = job(
        profile, 128, 64, tensor=8, stages=4, data=4, chunks=2, recompute="selective", optimizer="adam",
        target="torchtitan",
    )  # fmt: skip
    assert check_plan(plan, profile.graph) == ()
    matrices = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    layers = {name.split(".")[2] for name in plan.stages[1].operators}
    parameters = len(layers) * (matrices // 8 + 2 * 8192)
    terms = dict(plan.stages[1].cost.memory_terms)
    assert (terms["parameters"], terms["gradients"]) == (2 * parameters, 4 * parameters)  # sums and shards are fp32
    assert (terms["optimizer"], terms["master_weights"]) == (8 * parameters, 2 * parameters)  # weights kept in fp32
    assert plan.runs_on == ("torchtitan", "megatron")


def test_pins_hold_for_fixed_jobs_too(tmp_path: Path) -> None:
    (tmp_path / "pins.toml").write_text(
        '[[together]]\noperators = ["model.layers.0", "model.layers.1", "model.layers.2*"]\n'
        '[[apart]]\noperators = ["model.layers.6*", "model.layers.7*"]\n'
    )
    pins = read_pins(tmp_path / "pins.toml")
    plan = job("llama", 4, 8, stages=4, pins=pins, microbatch_size=2)
    home = {name: index for index, stage in enumerate(plan.stages) for name in stage.operators}
    assert home["model.layers.0.add_2"] == home["model.layers.2.add_1"]
    assert home["model.layers.6.add_1"] != home["model.layers.7.add_1"]


def test_a_degree_may_leave_a_device_idle() -> None:
    """9 devices: 4 stages of 2 that divide tensors leave one, and that may be all that fits."""
    problem = Problem(described("llama"), None, 9, 8, target="megatron")
    degrees = {family.config.tensor for family in PreparedProblem(problem).families.all}
    assert {1, 2, 4} <= degrees


@pytest.mark.parametrize("target", ["megatron", "deepspeed"])
def test_trainers_that_run_schedules_by_name_are_planned_for_with_those_alone(target: str) -> None:
    plan = job("llama", 4, 16, target=target, stages=4)
    assert target in plan.runs_on
    assert plan.schedule in ("1f1b", "graph-1f1b", "interleaved-1f1b")
    assert plan.search.baselines["chain"] >= plan.search.best_step_time_ns
    assert all(target in rung.runs_on for rung in plan.rungs if rung.strategy == "pipeline")
    assert target != "deepspeed" or len({stage.ranks for stage in plan.stages}) == len(plan.stages)


def test_parallelism_that_no_deepspeed_runs_is_not_blamed_on_the_pipeline() -> None:
    with pytest.raises(NoPlanFits, match="does not take this plan: context parallelism;"):
        job("llama", 4, 8, target="deepspeed", stages=1, context=2)
