"""Stages that a function of the user's divides: exact under either backward, and held to what the plan says.

Degrees, borders between other numbers of lanes and replicas, training that goes on under another division, torchtitan's
own way with a model, and everything that is refused, before anything is sent where that can be known.
"""

from collections.abc import Iterator
from inspect import getsource
from pathlib import Path
from typing import Any

import pytest
import torch

from costmodel.capture.models import load_model
from costmodel.errors import DoesNotMatch
from executor import Pipeline
from planner.plan.rank_order import PIPELINE_INSIDE
from tests.support.ranks import parallel_jobs as jobs
from tests.support.ranks.rank_pool import RankPool
from tests.support.repository import ROOT

MIXTRAL, DEEPSEEK = "tests.support.hugging_face_models:mixtral", "tests.support.hugging_face_models:deepseek"
LLAMA, ZOO = "tests.support.hugging_face_models:llama", "zoo:llama3:small"


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    pool = RankPool(4)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "degrees",
    [
        {"num_stages": 2, "tensor": (2, 2), "schedule": "split"},
        {"num_stages": 2, "data": (2, 2), "zero": (2, 2)},
        {"num_stages": 2, "data": (2, 2), "zero": (3, 3), "schedule": "split"},
        {"num_stages": 1, "data": (2,), "tensor": (2,), "zero": (3,)},
    ],
    ids=lambda row: " ".join(f"{name} {value}" for name, value in row.items()),
)
def test_divided_stages_have_the_gradients_of_one_process(ranks: RankPool, degrees: dict) -> None:
    found = ranks.run(jobs.errors, model=LLAMA, **degrees)[0]
    assert found["gradient"] <= 1e-5
    assert found["loss"] <= 1e-6


@pytest.mark.parametrize(
    "degrees",
    [
        {"num_stages": 2, "data": (2, 2), "zero": (2, 3), "schedule": "split"},
        {"num_stages": 2, "data": (2, 2), "zero": (3, 3), "reduce": "step"},
        {"num_stages": 2, "data": (2, 2), "zero": (3, 2), "behind": "q_proj", "schedule": "split"},
    ],
    ids=lambda row: " ".join(f"{name} {value}" for name, value in row.items()),
)
def test_zero_2_and_3_need_no_function(ranks: RankPool, degrees: dict) -> None:
    options = {"model": LLAMA, "how": "none", **degrees}
    assert ranks.run(jobs.errors, num_steps=2, **options)[0]["gradient"] <= 1e-5


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        (LLAMA, {"num_stages": 2, "tensor": (2, 2), "schedule": "split"}),
        (LLAMA, {"num_stages": 1, "data": (2,), "tensor": (2,), "zero": (3,)}),
        (MIXTRAL, {"num_stages": 2, "tensor": (1, 2), "data": (2, 1)}),
        ("zoo:gpt:small", {"num_stages": 2, "tensor": (2, 2), "schedule": "split"}),
    ],
    ids=lambda row: str(row),
)
def test_tensor_degrees_need_no_function(ranks: RankPool, model: str, degrees: dict) -> None:
    """Pairs of linear layers are divided, what has none (packed projections, experts) is done by each lane."""
    found = ranks.run(jobs.errors, model=model, how="none", **degrees)[0]
    assert found["gradient"] <= 1e-5


@pytest.mark.parametrize(("model", "schedule", "zero"), [(DEEPSEEK, "graph-1f1b", 0), (MIXTRAL, "split", 3)])
def test_replicas_have_experts_of_their_own(ranks: RankPool, model: str, schedule: str, zero: int) -> None:
    """What is captured has all experts in one place, what runs sends tokens to them."""
    expected = jobs.alone(model, 2)
    options = {"num_stages": 2, "data": (2, 2), "zero": (zero, zero), "expert": 2, "schedule": schedule}
    assert ranks.run(jobs.errors, model=model, how="experts", **options)[0]["gradient"] <= 1e-5
    found = ranks.run(jobs.trained, model=model, num_steps=2, how="experts", **options)[0]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert (found["norm"], found["evaluated"]) == pytest.approx((expected["norm"], expected["evaluated"]), rel=1e-5)


@pytest.mark.parametrize(
    "degrees",
    [{"num_stages": 1, "data": (2,), "tensor": (2,), "expert": 4}, {"num_stages": 2, "tensor": (2, 2), "expert": 2}],
    ids=lambda row: " ".join(f"{name} {value}" for name, value in row.items()),
)
def test_tensor_ranks_have_experts_of_their_own(ranks: RankPool, degrees: dict) -> None:
    """Experts spread over data and tensor ranks, or over tensor ranks alone: gradients and bytes are as planned.

    Each lane sends its part of a micro-batch's tokens to as many experts as take each, and back, and so their
    gradients: as `costmodel.stages.strategies.traffic` prices them.
    """
    options = {"model": MIXTRAL, "how": "folded", "expert_tensor": 1, **degrees}
    assert ranks.run(jobs.errors, **options)[0]["gradient"] <= 1e-5
    config = load_model(MIXTRAL, 8).module.config
    tokens = load_model(MIXTRAL, 8).kwargs["input_ids"].numel()
    rows = tokens * config.num_experts_per_tok * config.num_hidden_layers
    assert sum(ranks.run(jobs.sent_to_experts, **options)) == 4 * rows * config.hidden_size * 4


@pytest.mark.parametrize(("schedule", "zero"), [("graph-1f1b", 2), ("split", 3)])
def test_stages_that_form_a_graph_divide_their_parameters(ranks: RankPool, schedule: str, zero: int) -> None:
    """Two stages without a border between them feed the one that joins them, which shares the first one's ranks."""
    assert ranks.run(jobs.graph_errors, schedule=schedule, zero=zero)[0]["gradient"] <= 1e-5


@pytest.mark.parametrize(
    "degrees",
    [
        {"num_stages": 2, "data": (2, 2), "zero": (2, 3), "schedule": "recompute"},
        {"num_stages": 1, "data": (4,), "zero": (3,), "num_microbatches": 8},
        {"num_stages": 2, "data": (2, 2), "zero": (3, 3), "behind": "norm_ffn", "schedule": "split"},
    ],
    ids=lambda row: " ".join(f"{name} {value}" for name, value in row.items()),
)
def test_what_is_gathered_and_scattered_in_a_step_stands_in_the_plan(ranks: RankPool, degrees: dict) -> None:
    """Number and bytes are equal on each rank and in each step, counted where torch hands them to the group."""
    for rows in ranks.run(jobs.collectives, model=ZOO, **degrees):
        for counted, planned in rows:
            assert counted == planned
            assert planned["all_gather"][0]


@pytest.mark.parametrize(("zero", "data"), [((1, 3), (2, 2)), ((0, 1), (1, 3))], ids=str)
def test_stages_divide_states_each_in_its_own_way(
    ranks: RankPool, zero: tuple[int, ...], data: tuple[int, ...]
) -> None:
    """ZeRO by stage, next to one replica, too, has the gradients of one process; what ZeRO-3 sends is as planned."""
    degrees = {"num_stages": 2, "data": data, "zero": zero, "num_microbatches": 6}
    assert ranks.run(jobs.errors, model=LLAMA, how="none", num_steps=2, **degrees)[0]["gradient"] <= 1e-5
    for rows in ranks.run(jobs.collectives, model=ZOO, **degrees) if 3 in zero else ():
        for counted, planned in rows:
            assert counted == planned


@pytest.mark.parametrize(("zero", "schedule"), [(1, "graph-1f1b"), (2, "split"), (3, "graph-1f1b")])
def test_shard_groups_have_the_gradients_of_one_process(ranks: RankPool, zero: int, schedule: str) -> None:
    """Groups 2 x 2; ``python -m benchmarks.reliability --only shard-groups`` has 2 x 4, and two stages of 2 x 2."""
    degrees = {"num_stages": 1, "data": (4,), "zero": (zero,), "shard_group": 2, "num_microbatches": 8}
    found = ranks.run(jobs.errors, model=LLAMA, how="none", num_steps=2, schedule=schedule, **degrees)[0]
    assert found["gradient"] <= 1e-5


@pytest.mark.parametrize("degrees", [{"zero": (0, 0), "schedule": "split"}, {"zero": (3, 3)}])
def test_stages_of_a_replica_side_by_side_have_the_gradients_of_one_process(ranks: RankPool, degrees: dict) -> None:
    options = {"num_stages": 2, "data": (2, 2), "rank_order": PIPELINE_INSIDE, **degrees}
    assert ranks.run(jobs.errors, model=LLAMA, how="none", num_steps=2, **options)[0]["gradient"] <= 1e-5


def test_what_replicas_on_every_other_rank_gather_in_a_step_stands_in_the_plan(ranks: RankPool) -> None:
    options = {"num_stages": 2, "data": (2, 2), "zero": (2, 3), "rank_order": PIPELINE_INSIDE}
    for rows in ranks.run(jobs.collectives, model=ZOO, **options):
        for counted, planned in rows:
            assert counted == planned
            assert planned["all_gather"][0]


@pytest.mark.parametrize("zero", [2, 3])
def test_what_shard_groups_gather_and_sum_in_a_step_stands_in_the_plan(ranks: RankPool, zero: int) -> None:
    degrees = {"num_stages": 1, "data": (4,), "zero": (zero,), "shard_group": 2, "num_microbatches": 8}
    for rows in ranks.run(jobs.collectives, model=ZOO, **degrees):
        for counted, planned in rows:
            assert counted == planned
            assert planned["all_reduce"][0]


@pytest.mark.parametrize(
    "degrees",
    [
        {"num_stages": 2, "tensor": (2, 2), "schedule": "recompute"},
        {"num_stages": 1, "data": (2,), "tensor": (2,), "zero": (3,), "schedule": "split"},
    ],
    ids=lambda row: " ".join(f"{name} {value}" for name, value in row.items()),
)
def test_what_lanes_sum_in_a_step_stands_in_the_plan(ranks: RankPool, degrees: dict) -> None:
    for rows in ranks.run(jobs.collectives, model=ZOO, **degrees):
        for counted, planned in rows:
            assert counted == planned
            assert planned["all_reduce"][0]


@pytest.mark.parametrize(
    "degrees",
    [
        {"num_stages": 2, "tensor": (1, 2), "data": (2, 1)},
        {"num_stages": 2, "tensor": (2, 1), "data": (1, 2)},
        {"num_stages": 2, "data": (2, 2), "zero": (3, 2), "schedule": "recompute"},
        {"num_stages": 2, "data": (2, 2), "zero": (2, 0), "num_steps": 2},
    ],
    ids=lambda row: " ".join(f"{name} {value}" for name, value in row.items()),
)
def test_stages_may_be_divided_otherwise_than_their_neighbours(ranks: RankPool, degrees: dict) -> None:
    assert ranks.run(jobs.errors, model=LLAMA, **degrees)[0]["gradient"] <= 1e-5


def test_training_goes_on_under_another_division_and_in_plain_stages(ranks: RankPool, tmp_path: Path) -> None:
    expected, folder = jobs.alone(LLAMA, 6), str(tmp_path / "job")
    first = {"num_stages": 2, "data": (2, 2), "zero": (3, 3), "how": "none"}
    begun = ranks.run(jobs.trained, model=LLAMA, num_steps=3, folder=folder, save=True, **first)[0]
    assert begun["losses"] == pytest.approx(expected["losses"][:3], rel=1e-6)
    others = [
        {"num_stages": 2, "tensor": (2, 2), "how": "none"},
        {"num_stages": 4, "how": "none"},
    ]
    for options in (*others, {"num_stages": 1, "how": "none"}):
        job = {"model": LLAMA, "num_steps": 6, "folder": folder, **options}
        found = jobs.trained(**job) if options["num_stages"] == 1 else ranks.run(jobs.trained, **job)[0]
        assert found["losses"] == pytest.approx(expected["losses"][3:], rel=1e-6)
        assert (found["norm"], found["evaluated"]) == pytest.approx((expected["norm"], expected["evaluated"]), rel=1e-5)
        assert found["moments"] == len(expected["state"])
        for name, value in expected["state"].items():
            torch.testing.assert_close(found["state"][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "degrees",
    [
        {"num_stages": 2, "tensor": (2, 2), "border": "shard(1)"},
        {"num_stages": 2, "data": (2, 2), "zero": (3, 3)},
    ],
)
def test_torchtitans_own_way_with_a_model_runs(ranks: RankPool, degrees: dict) -> None:
    """Sequences stay divided between stages, blocks run again by themselves, and where torch can they are compiled."""
    expected = jobs.alone(ZOO, 2)
    found = ranks.run(jobs.trained, model=ZOO, num_steps=2, how="torchtitan", **degrees)[0]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert (found["norm"], found["evaluated"]) == pytest.approx((expected["norm"], expected["evaluated"]), rel=1e-5)


def refusal(ranks: RankPool, **options: object) -> str:
    """What the ranks refuse, in one line, all of them."""
    found = ranks.run(jobs.refused, **options)
    assert all(found)
    return str(found[0])


def test_a_degree_that_the_function_leaves_out_is_refused(ranks: RankPool) -> None:
    options = {"model": LLAMA, "num_stages": 2, "how": "nothing"}
    assert "the plan has tensor = 2, and parallelize= has divided no parameter" in refusal(
        ranks, tensor=(2, 2), **options
    )
    assert "the plan has ZeRO-3, and parallelize= has not divided" in refusal(
        ranks, data=(2, 2), zero=(3, 3), **options
    )


@pytest.mark.parametrize("degrees", [{"data": (4,), "zero": (3,)}, {"data": (2,), "tensor": (2,), "zero": (2,)}])
def test_what_no_stage_reads_is_not_gathered(ranks: RankPool, degrees: dict) -> None:
    """Rank 0 alone has its values: gathered with the rest it would hold the others up."""
    found = ranks.run(jobs.errors, model="tests.support.training_models:odd", num_stages=1, how="none", **degrees)[0]
    assert found["gradient"] <= 1e-5


def test_code_that_looks_at_the_width_of_what_is_divided_is_refused(ranks: RankPool) -> None:
    found = refusal(
        ranks, model="tests.support.training_models:looking", num_stages=1, data=(2,), tensor=(2,), how="none"
    )
    assert "is not what it was once the plan's tensor degree divides the linear layers" in found


def test_tensor_degrees_that_the_model_cannot_have_are_refused(ranks: RankPool) -> None:
    found = refusal(ranks, model=LLAMA, num_stages=1, tensor=(4,), how="none")
    assert "'model.layers.0.self_attn.o_proj' with the layers before it is known to divide into 2 parts" in found
    found = refusal(
        ranks, model="tests.support.hugging_face_models:gpt2", num_stages=1, data=(2,), tensor=(2,), how="none"
    )
    assert "calls no block with linear layers that divide in pairs" in found


def test_parameters_with_gaps_between_their_values_are_refused_by_name_where_they_would_be_gathered(
    ranks: RankPool,
) -> None:
    options = {"model": "tests.support.training_models:llama_with_gaps", "num_stages": 2, "data": (2, 2)}
    found = refusal(ranks, **options, zero=(3, 3), how="none")
    assert "the parameter 'norm_ffn.weight' is not contiguous" in found
    assert ranks.run(jobs.errors, **options, how="none")[0]["gradient"] <= 1e-5


def test_a_parameter_without_elements_is_no_parameter_without_values(ranks: RankPool) -> None:
    options = {"model": "tests.support.training_models:llama_with_an_empty_parameter", "num_stages": 2, "data": (2, 2)}
    assert ranks.run(jobs.errors, **options, zero=(3, 3), how="none")[0]["gradient"] <= 1e-5


def test_lanes_that_pass_on_more_than_the_plan_says_are_refused(ranks: RankPool) -> None:
    found = refusal(ranks, model=LLAMA, num_stages=2, tensor=(2, 2), border="shard(1)", how="blocks")
    assert "has shard(1) as the border of the edge 0 -> 1, and each lane of stage 0 sends the whole" in found


def test_experts_that_the_function_leaves_whole_are_refused(ranks: RankPool) -> None:
    options = {"model": MIXTRAL, "num_stages": 2, "data": (2, 2), "expert": 2}
    assert "and parallelize= has divided no experts along mesh['data']" in refusal(ranks, how="nothing", **options)
    found = refusal(ranks, how="experts", behind="self_attn", **options)
    assert "has divided 'model.layers.1.mlp.experts" in found


def test_a_division_that_the_plan_does_not_have_is_refused(ranks: RankPool) -> None:
    found = refusal(ranks, model=LLAMA, num_stages=2, data=(2, 2), how="whole")
    assert "the plan has ZeRO-0, and parallelize= has called fully_shard" in found


def test_a_cut_through_a_divided_block_is_refused(ranks: RankPool) -> None:
    found = refusal(ranks, model=LLAMA, num_stages=2, tensor=(2, 2), behind="q_proj", how="blocks")
    assert "has divided 'model.layers.1.self_attn" in found
    assert "the stage does not call 'model.layers.1' whole (a cut goes through it)" in found


def test_a_cut_through_a_block_that_gathers_for_itself_is_refused(ranks: RankPool) -> None:
    found = refusal(ranks, model=LLAMA, num_stages=2, data=(2, 2), zero=(2, 2), behind="q_proj", how="blocks")
    assert "fully_shard on 'model.layers.1', which the stage does not call (a cut goes through it)" in found


def test_a_stage_with_part_of_a_block_gathers_that_with_itself(ranks: RankPool) -> None:
    options = {"num_stages": 2, "data": (2, 2), "zero": (3, 3), "behind": "q_proj", "how": "whole"}
    assert ranks.run(jobs.errors, model=LLAMA, **options)[0]["gradient"] <= 1e-5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("torchtitan", "the plan splits its backward, and parallelize= has"),
        ("untied", "has made the parameter 'extra', which would not be trained"),
        ("crossed", "along mesh['data'] without fully_shard"),
        ("other", "has returned another module"),
    ],
)
def test_what_a_function_may_not_do_is_refused(ranks: RankPool, how: str, message: str) -> None:
    options = {"num_stages": 2, "data": (2, 2), "schedule": "split"}
    assert message in refusal(ranks, model=ZOO if how == "torchtitan" else LLAMA, how=how, **options)


def test_a_divided_stage_lets_go_of_what_it_was(ranks: RankPool) -> None:
    """Each rank of two holds half of every matrix that is divided, and the whole of none."""
    held, whole = ranks.run(jobs.held_bytes, model=LLAMA, num_stages=2, data=(2, 2), zero=(3, 3))[0]
    assert held <= 0.55 * whole


def test_the_guides_function_is_the_one_that_is_tried() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    assert getsource(jobs.parallelize) in guide


def test_parts_that_lanes_of_another_number_would_have_to_join_are_refused(ranks: RankPool) -> None:
    found = refusal(ranks, model=ZOO, num_stages=2, tensor=(2, 1), data=(1, 2), how="torchtitan")
    assert "on 2 lanes, and stage 1, on 1, needs it whole" in found


@pytest.mark.parametrize(
    ("options", "how", "message"),
    [
        ({"data": (3, 1), "zero": (2, 0)}, "blocks", "4 micro-batches do not divide by that"),
        ({"data": (2, 1), "zero": (2, 0)}, "none", "stage 1 has 1 replicas: plan with as many, or ZeRO-1"),
        ({"data": (2, 2), "tensor": (2, 2), "zero": (1, 1)}, "blocks", "has ZeRO-1 and tensor = 2"),
        ({"data": (2, 2), "expert": 2, "zero": (1, 1)}, "experts", "has ZeRO-1 and expert = 2"),
        ({"data": (4, 4), "expert": 2}, "experts", "expert = 2 among 4 replicas, and each replica has experts of"),
        ({"data": (2, 2), "expert": 2}, "none", "has config.expert = 2"),
        ({"data": (3, 3), "expert": 3}, "experts", "have experts of each other's .* 4 micro-batches do not divide by"),
        ({"data": (2, 1), "expert": 2}, "experts", "expert = 2 among 1 replicas"),
    ],
)
def test_what_no_function_brings_about_is_refused_before_anything_is_sent(
    options: dict, how: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses_alone(monkeypatch, LLAMA, how, message, **options)


@pytest.mark.parametrize("how", ["none", "whole"])
@pytest.mark.parametrize(
    "options", [{"data": (2, 2), "zero": (2, 2)}, {"data": (2, 2), "zero": (3, 0)}, {"tensor": (2, 1)}]
)
def test_weights_that_a_divided_stage_shares_are_refused_before_anything_is_sent(
    options: dict, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "stages 0 and 1 share the parameter 'tokens.weight', and stage 0 has .*: pin what reads it into one"
    refuses_alone(monkeypatch, "tests.support.training_models:tied_gpt", how, message, **options)


def test_lengths_that_lanes_do_not_divide_are_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "the 2 lanes of stage 0 do not divide the length 15 of .*: take a length that divides by 2"
    model, options = "tests.support.training_models:llama_of_odd_length", {"tensor": (2, 2), "border": "shard(1)"}
    refuses_alone(monkeypatch, model, "torchtitan", message, **options)


def refuses_alone(monkeypatch: pytest.MonkeyPatch, model: str, how: str, message: str, **options: Any) -> None:
    """Have one rank of a plan for several refuse it with exit 6, which no other rank is there to hear of."""
    plan = jobs.layered_plan(model, 2, **options)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(len(plan.orders)))
    with pytest.raises(DoesNotMatch, match=message) as refused:
        Pipeline(plan, load_model(model, plan.batch.global_size), parallelize=jobs.FUNCTIONS[how])
    assert refused.value.exit_code == 6
    assert not torch.distributed.is_initialized()


# What ends ranks comes last: the others share theirs.


def test_a_norm_that_sees_a_part_of_a_sequence_and_is_left_whole_is_refused(ranks: RankPool) -> None:
    with pytest.raises(AssertionError, match=r"has left 'layers.\d.norm_ffn.weight' whole, and its gradient"):
        ranks.run(jobs.errors, model=ZOO, num_stages=2, tensor=(2, 2), how="forgetful")


def test_a_rank_that_dies_ends_its_lanes_and_their_neighbours(ranks: RankPool) -> None:
    with pytest.raises(AssertionError, match="rank 1 has died"):
        ranks.run(jobs.dies, model=LLAMA, num_stages=2, tensor=(2, 2))
    for process in ranks.processes:
        process.join(20)
        assert not process.is_alive()
