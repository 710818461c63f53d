"""Golden files: reading and writing again gives the same bytes, for every format that we write."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodel.errors import InvalidInput
from costmodel.files import Node, read_json
from costmodel.machines.cluster import CLUSTER, read_cluster
from costmodel.machines.links import read_links, write_links
from costmodel.model.origin import ROOFLINE, Origin
from costmodel.model.profile import read_profile, write_profile
from costmodel.stages.costs import EdgeCost
from costmodel.stages.costs_file import read_costs
from planner.checker import check_plan
from planner.plan import read_plan, write_plan
from planner.plan.book import read_book, write_book
from planner.plan.rank_order import RANK_ORDER
from simulator.timeline import read_timeline, write_timeline
from tests.support.repository import DATA, GOLDEN
from tests.support.small_plan import PLAN, with_edge


def rewrite_plan(source: Path, target: Path) -> None:
    write_plan(target, read_plan(source))


def rewrite_book(source: Path, target: Path) -> None:
    write_book(target, read_book(source).pages)


def rewrite_profile(source: Path, target: Path) -> None:
    write_profile(target, read_profile(source))


def rewrite_links(source: Path, target: Path) -> None:
    write_links(target, read_links(source), {"penstock": "0.1.0"})


def rewrite_timeline(source: Path, target: Path) -> None:
    write_timeline(target, read_timeline(source), {"note": "made by hand"})


REWRITES: list[tuple[str, Callable[[Path, Path], None]]] = [
    ("plan.json", rewrite_plan),
    ("plan_links.json", rewrite_plan),
    ("plan_divided.json", rewrite_plan),
    ("book.json", rewrite_book),
    ("profile.json", rewrite_profile),
    ("links.json", rewrite_links),
    ("timeline.json", rewrite_timeline),
]


@pytest.mark.parametrize(("name", "rewrite"), REWRITES, ids=[name for name, _ in REWRITES])
def test_reading_and_writing_again_gives_the_same_bytes(
    name: str, rewrite: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    rewrite(GOLDEN / name, tmp_path / name)
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize(("name", "rewrite"), REWRITES, ids=[name for name, _ in REWRITES])
def test_compressed_files_hold_the_same_and_are_the_same_each_time(
    name: str, rewrite: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    rewrite(GOLDEN / name, tmp_path / "a.json.gz")
    rewrite(tmp_path / "a.json.gz", tmp_path / name)
    rewrite(tmp_path / name, tmp_path / "b.json.gz")
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_the_golden_plan_is_the_one_made_by_hand_and_legal() -> None:
    assert read_plan(GOLDEN / "plan.json") == PLAN
    assert check_plan(read_plan(GOLDEN / "plan.json")) == ()


def test_a_divided_stage_says_how_its_ranks_stand_and_what_its_lanes_pass_on(tmp_path: Path) -> None:
    plan = read_plan(GOLDEN / "plan_divided.json")
    assert check_plan(plan) == ()
    assert plan.stages[0].mesh == (("data", 2), ("context", 1), ("tensor", 2))
    assert plan.stages[0].blocks == ((0, 1), (2, 3))
    assert plan.edges[0].border == "shard(1)"
    wrong = json.loads((GOLDEN / "plan_divided.json").read_text())
    wrong["stages"][1]["mesh"]["lanes"] = 4
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    with pytest.raises(InvalidInput, match=r"/stages/1/mesh: found .*; the stage's config makes .*'lanes': 2"):
        read_plan(tmp_path / "wrong.json")


def test_parts_that_no_second_lane_holds_are_a_problem() -> None:
    found = check_plan(with_edge(PLAN, 0, border="shard(1)"))
    assert [problem.message for problem in found] == [
        "the border is shard(1), and a replica of stage 0 has one lane; replicate is right"
    ]


def test_a_plan_of_version_2_is_read_without_rank_order_groups_and_experts_in_other_parts() -> None:
    plan = read_plan(DATA / "golden_plan_version_2.json")
    assert plan == PLAN
    assert not plan.rank_order
    assert {(stage.config.shard_group, stage.config.expert_tensor) for stage in plan.stages} == {(0, 1)}
    assert read_plan(GOLDEN / "plan_divided.json").rank_order == RANK_ORDER


def test_a_profile_of_version_1_is_read_with_what_stood_among_the_free(tmp_path: Path) -> None:
    old = json.loads((DATA / "golden_profile_version_1.json").read_text())
    old["provenance"] |= {"estimated": True, "precision": "bf16", "autocast": ""}
    old["extra"] |= {"plan_only": "described", "estimated": ["scaled"]}
    (tmp_path / "old.json").write_text(json.dumps(old))
    found = read_profile(tmp_path / "old.json")
    assert found.origin == Origin("described", (ROOFLINE, "scaled"), "bf16", "")
    assert "plan_only" not in found.extra
    assert found.times == read_profile(GOLDEN / "profile.json").times


def test_costs_have_the_defaults_of_the_contract() -> None:
    costs = read_costs(GOLDEN / "costs.json")
    first, second, third = costs.stages
    assert (first.activation_bytes, first.weight_activation_bytes, first.static_bytes) == (64, 32, 7)
    assert (second.forward_ns, second.activation_bytes, second.weight_activation_bytes) == ((1000, 2000), 2, 1)
    assert (third.activation_bytes, third.weight_activation_bytes, third.backward) == (2, 1, False)
    assert costs.ranks == ((0,), (1, 2), (3,))
    assert costs.multiples == (1, 2, 1)
    assert costs.edges == (EdgeCost(0, 1, 10, 4, True), EdgeCost(0, 2, 0, 0, False))


def test_costs_without_edges_and_ranks_are_a_chain_of_one_stage_a_rank(tmp_path: Path) -> None:
    times = {"forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1, "activation_bytes": 5}
    (tmp_path / "c.json").write_text(json.dumps({"format": "penstock-costs", "version": 1, "stages": [times] * 3}))
    costs = read_costs(tmp_path / "c.json")
    assert costs.edges == (EdgeCost(0, 1), EdgeCost(1, 2))
    assert costs.ranks == ((0,), (1,), (2,))
    assert costs.stages[0].weight_activation_bytes == 2  # half of 5, rounded down


def test_a_cluster_in_a_plan_is_the_cluster_of_the_file() -> None:
    cluster = read_cluster(GOLDEN / "cluster.toml")
    assert cluster.num_devices == 16
    assert [cluster.device_of(rank).name for rank in (0, 7, 8, 15)] == ["a100", "a100", "processor", "processor"]
    assert (cluster.device_of(0).memory_bytes, cluster.hosts[0].memory_bytes) == (80 * 2**30, 1024 * 2**30)
    assert (cluster.speed_of(3), cluster.speed_of(4)) == (0.9, 1.0)
    assert [cluster.link_between(0, rank).name for rank in (3, 4)] == ["nvlink", "network"]
    inline = CLUSTER.read(Node(json.loads(json.dumps(CLUSTER.write(cluster))), "", "plan"))
    assert inline == cluster


def test_measured_links_take_the_place_of_given_ones() -> None:
    cluster = read_cluster(GOLDEN / "cluster.toml")
    assert cluster.p2p_ns(0, 1, 1000) == 30_000 + 2_000  # 1000 bytes at 0.5 GB/s
    assert cluster.p2p_ns(0, 1, 70_000) == 45_000 + 20_000
    assert cluster.p2p_ns(2, 2, 70_000) == 0


def test_files_are_read_as_json_with_their_pointer() -> None:
    assert read_json(GOLDEN / "plan.json").entries()["batch"].pointer == "/batch"
