"""A book of plans: a page for each number of hosts, what moves between neighbours, and what has no page."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import DoesNotMatch, InvalidInput, UsageError
from costmodel.machines.changed_cluster import with_hosts
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile, write_profile
from costmodel.zoo.generated import generate
from planner.candidate.moved_states import state_transfer
from planner.commands import main
from planner.front import make_plan
from planner.plan import Plan
from planner.plan.book import Book, Page, StateTransfer, read_book, read_plan_or_book
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from tests.support.described_models import described
from tests.support.repository import GOLDEN, ROOT
from tests.support.small_plan import PLAN

CLUSTER = Cluster(
    (DeviceType("a100", 80 * 2**30, "cuda", "a100-sxm-80"),),
    (Host("a100", 2, 3),),
    (LinkGroup("nvlink", 2, 200.0, 1000), LinkGroup("net", 0, 10.0, 5000)),
)


def problem(hosts: int, profile: Profile | None = None, **fixed: object) -> Problem:
    cluster, space = with_hosts(CLUSTER, hosts), Space(**fixed)  # type: ignore[arg-type]
    return Problem(
        profile or described("llama", "a100-sxm-80"), cluster, cluster.num_devices, 12, space=space,
        effort=Effort(0.0), target="any",
    )  # fmt: skip


def planned(hosts: int, **fixed: object) -> Plan:
    return make_plan(problem(hosts, **fixed)).plan


def states_of(plan: Plan, ranks: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> int:
    """Return the bytes of parameters and optimizer states that some ranks hold together, by the plan's memory."""
    names = ("parameters", "optimizer", "master_weights")
    return sum(
        len(set(stage.ranks) & set(ranks)) * size
        for stage in plan.stages
        for name, size in stage.cost.memory_terms
        if name in names
    )


SHAPES = [
    {"stages": 2, "data": 1},
    {"stages": 1, "data": 2, "zero": 1},
    {"stages": 1, "data": 2, "zero": 3},
    {"stages": 1, "data": 1, "tensor": 2},
]


@pytest.mark.parametrize("fixed", SHAPES)
def test_nothing_moves_between_a_plan_and_itself(fixed: dict[str, object]) -> None:
    plan = planned(1, **fixed)
    assert state_transfer(problem(1), plan, plan) == StateTransfer()


@pytest.mark.parametrize("fixed", SHAPES)
def test_devices_that_join_receive_all_that_they_hold(fixed: dict[str, object]) -> None:
    """Under a plan of one device the other one holds nothing, and the first one all."""
    alone, plan = planned(1, stages=1, data=1, tensor=1), planned(1, **fixed)
    assert len(alone.orders) == 1
    moved = state_transfer(problem(1), alone, plan).size_bytes
    assert moved == pytest.approx(states_of(plan, (1,)), rel=1e-3)


def test_replicas_that_stop_dividing_receive_the_halves_that_they_lack() -> None:
    divided, whole = planned(1, stages=1, data=2, zero=3), planned(1, stages=1, data=2, zero=0)
    moved = state_transfer(problem(1), divided, whole)
    assert moved.size_bytes == pytest.approx(states_of(whole) / 2, rel=1e-3)
    assert state_transfer(problem(1), whole, divided).size_bytes == 0
    each_ns = moved.size_bytes / 2 / 200.0 + 1000
    assert moved.seconds * 1e9 == pytest.approx(each_ns, rel=1e-3)


def test_what_a_lost_host_held_alone_comes_over_the_outermost_link() -> None:
    before, after = planned(2, stages=2, data=2, zero=0), planned(1, stages=1, data=2, zero=0)
    moved = state_transfer(problem(1), before, after)
    lacking = states_of(after) - states_of(before) / 2  # each survivor has one of the two halves, about
    assert moved.size_bytes == pytest.approx(lacking, rel=0.3)
    per_device = moved.size_bytes / 2
    assert moved.seconds >= per_device / 10e9


def test_a_book_is_of_one_model_one_batch_and_a_page_for_each_number_of_hosts() -> None:
    with pytest.raises(InvalidInput, match="2 pages are for 3 hosts; keep one of them"):
        Book((Page(3, PLAN), Page(3, PLAN)))
    with pytest.raises(InvalidInput, match="the page for 1 hosts has the model other"):
        Book((Page(2, PLAN), Page(1, replace(PLAN, fingerprint="other"))))
    with pytest.raises(InvalidInput, match="at least one is needed"):
        Book(())


def test_the_page_is_the_one_for_as_many_ranks_as_run() -> None:
    book = read_book(GOLDEN / "book.json")
    assert book.for_ranks(4) == PLAN
    with pytest.raises(DoesNotMatch, match=r"3 ranks are running, and the book has pages for 4 \(2 hosts\)"):
        book.for_ranks(3)
    assert read_plan_or_book(GOLDEN / "plan.json") == PLAN


def test_the_first_hosts_keep_their_ranks_and_links() -> None:
    cluster = replace(CLUSTER, speeds=((1, 0.5), (5, 0.5)))
    two = with_hosts(cluster, 2)
    assert (two.num_devices, two.hosts, two.speeds) == (4, (Host("a100", 2, 2),), ((1, 0.5),))
    assert with_hosts(replace(CLUSTER, groups=(LinkGroup("all", 6, 1.0, 1),)), 1).groups[0].group == 0
    with pytest.raises(UsageError, match="4 hosts asked for; the cluster has 3"):
        with_hosts(CLUSTER, 4)


@pytest.fixture(scope="module", name="folder")
def folder_with_profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    write_profile(folder / "profile.json", generate("random:24:5"))
    return folder


def asked(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = main(
        ["book", str(folder / "profile.json"), "--time-limit", "0", "-o", str(folder / "b.json"), *words, "--json"]
    )
    return code, json.loads(capsys.readouterr().out)


def test_the_command_writes_a_page_for_each_number_of_hosts_and_validates(folder, capsys) -> None:
    code, answer = asked(folder, capsys, "--hosts", "3,2,1", "--batch", "12")
    assert code == 0
    book = read_book(folder / "b.json")
    assert [page["hosts"] for page in answer["pages"]] == [page.hosts for page in book.pages] == [3, 2, 1]
    for told, page in zip(answer["pages"], book.pages, strict=True):
        moved = page.from_previous
        assert told["step_time_ns"] == page.plan.prediction.step_time_ns
        assert (told["bytes_moved"], told["seconds_to_move"]) == (moved.size_bytes, moved.seconds)
        assert page.plan.batch.global_size == 12
    assert book.pages[0].from_previous == StateTransfer()
    assert main(["validate", str(folder / "b.json")]) == 0
    assert "3 pages, " in capsys.readouterr().out


def test_a_number_of_hosts_on_which_nothing_fits_is_told_and_the_others_stay(folder, capsys) -> None:
    code, answer = asked(folder, capsys, "--hosts", "3,2", "--batch", "12", "--stages", "3", "--data", "1")
    assert code == 0
    assert [page["hosts"] for page in answer["pages"]] == [3]
    (refused,) = answer["refused"]
    assert (refused["hosts"], refused["exit"]) == (2, 2)
    assert len(read_book(folder / "b.json").pages) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--hosts", "3,2", "--devices", "8", "--batch", "12"), 2, "8 devices do not divide into 3 hosts"),
        (("--hosts", "3,3", "--batch", "12"), 2, "each number of hosts is given once"),
        (("--hosts", "0", "--batch", "12"), 2, "a whole number from 1"),
        (("--hosts", "2,1", "--batch", "12", "--memory-limit", "0.000001"), 4, ""),
    ],
)
def test_what_cannot_be_asked_is_refused_and_nothing_is_written(words, code, said, folder, tmp_path, capsys) -> None:
    target = tmp_path / "book.json"
    line = ["book", str(folder / "profile.json"), "--time-limit", "0", "-o", str(target), *words]
    assert main(line) == code
    assert said in capsys.readouterr().err
    assert not target.exists()


def test_a_book_that_is_interrupted_keeps_its_pages_so_far(folder, tmp_path) -> None:
    command = [sys.executable, "-m", "planner", "book", str(folder / "profile.json"), "--hosts", "3,2", "--batch", "12",
               "--time-limit", "600", "--deterministic-limit", "1000", "-o", str(tmp_path / "book.json")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        next(line for line in process.stderr if line.startswith("known shapes"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    assert [page.hosts for page in read_book(tmp_path / "book.json").pages] == [3]
