"""Plans of several hosts: the launcher's layout must be the plan's, and a lost agent takes the others down."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.errors import DoesNotMatch
from costmodel.machines.cluster_parts import Host, LinkGroup
from examples.train import train_alone
from executor.__main__ import main
from executor.plan_match.matching import check_hosts
from planner.plan import write_plan
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand
from tests.support.ranks.executor_jobs import make_plan
from tests.support.ranks.rank_pool import free_port


def on_hosts(plan, *devices):
    hosts = tuple(Host("cpu", count) for count in devices)
    return replace(plan, cluster=replace(plan.cluster, hosts=hosts, groups=(LinkGroup("net", 0, 1.0, 20000),)))


def seated(monkeypatch, rank, host, place, num_hosts, on_host, world=4):
    names = ("RANK", "GROUP_RANK", "LOCAL_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    for name, value in zip(names, (rank, host, place, num_hosts, on_host, world), strict=True):
        monkeypatch.setenv(name, str(value))


@pytest.fixture(scope="module")
def plan():
    return make_plan("two_branch", num_stages=4)


LAYOUTS = [
    # hosts of the plan, (rank, host, place, hosts, ranks on it) by the launcher, whether they agree
    ((2, 2), (2, 1, 0, 2, 2), True),
    ((2, 2), (3, 1, 1, 2, 2), True),
    ((3, 1), (3, 1, 0, 2, 1), True),
    ((2, 4), (3, 1, 1, 2, 2), True),  # the last host's other devices have no rank
    ((4,), (2, 1, 0, 2, 2), True),  # a plan for one host, under two agents
    ((8, 8), (2, 1, 0, 2, 2), True),  # all ranks are on the first host
    ((2, 2), (2, 0, 2, 1, 4), False),  # one agent
    ((2, 2), (0, 0, 0, 1, 4), False),  # seen by every rank, also where host and place are right
    ((2, 2), (2, 0, 0, 2, 2), False),  # hosts the other way round
    ((3, 1), (2, 1, 0, 2, 2), False),
    ((1, 3), (0, 0, 0, 2, 3), False),
]


@pytest.mark.parametrize(("hosts", "seat", "agree"), LAYOUTS)
def test_a_layout_of_hosts_other_than_the_plans_is_refused(monkeypatch, plan, hosts, seat, agree):
    seated(monkeypatch, *seat)
    planned = on_hosts(plan, *hosts)
    if agree:
        check_hosts(planned, seat[0])
        return
    with pytest.raises(DoesNotMatch, match=rf"the plan has rank {seat[0]} on host \d of {len(hosts)}"):
        check_hosts(planned, seat[0])


def test_a_launcher_that_says_nothing_of_hosts_is_not_asked(monkeypatch, plan):
    monkeypatch.delenv("GROUP_RANK", raising=False)
    check_hosts(on_hosts(plan, 2, 2), 2)


def test_the_command_ends_with_6_in_one_line_before_any_communication(monkeypatch, plan, tmp_path, capfd):
    write_plan(tmp_path / "plan.json", on_hosts(plan, 2, 2))
    seated(monkeypatch, 2, 0, 2, 1, 4)
    assert main([str(tmp_path / "plan.json"), "--model", "tests.support.training_models:two_branch"]) == 6
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith("rank 2: error: the plan has rank 2 on host 1 of 2, as number 0 of 2 there; the launcher")
    assert "torchrun --nnodes 2" in said[0]
    assert said[1] == "PENSTOCK_EXIT=6"


class Agents:
    """Two torchrun agents on this machine, one rank each, that run the example job for ever."""

    def __init__(self, folder, plan_file):
        self.files = [(folder / f"out{host}").open("w+") for host in range(2)]
        words = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
        words += ["--master-port", str(free_port()), "-m", "examples.train", str(plan_file), "--steps", "100000"]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--node-rank", str(host), *words],
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            for host, file in enumerate(self.files)
        ]

    def said(self, host):
        with open(self.files[host].name, encoding="utf-8") as file:
            return file.read()

    def wait_for(self, host, text, timeout_s=120):
        end = time.monotonic() + timeout_s
        while text not in self.said(host):
            assert time.monotonic() < end, self.said(0) + self.said(1)
            time.sleep(0.05)

    def end(self):
        for process, file in zip(self.processes, self.files, strict=True):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            file.close()


def losses_in(said):
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+)  loss (\S+)", said)}


def still_there(text):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [path.parent.name] if text.encode() in path.read_bytes() else []
    return found


def test_the_example_job_under_two_agents_learns_as_alone_and_a_lost_agent_ends_it(tmp_path, capfd):
    plan_file = tmp_path / "plan.json"
    source = capture(load_model("examples.train:build", 4))
    made = plan_by_hand(
        source, in_equal_runs(source.operators, 2), num_microbatches=4, microbatch_size=8, optimizer="adam"
    )
    write_plan(plan_file, on_hosts(made, 1, 1))
    agents = Agents(tmp_path, plan_file)
    try:
        agents.wait_for(0, "step   10")
        os.killpg(agents.processes[1].pid, signal.SIGKILL)
        agents.wait_for(0, "PENSTOCK_EXIT=8", timeout_s=6)
        assert agents.processes[0].wait(20) == 1
        agents.processes[1].wait()
        assert not still_there(str(plan_file))
        said = agents.said(0)
    finally:
        agents.end()
    assert re.search(r"rank 0: lost rank 1: .*; this rank was .*; the last complete step is \d+", said)
    train_alone(11)
    alone = losses_in(capfd.readouterr().out)
    assert {step: losses_in(said)[step] for step in (0, 10)} == pytest.approx(alone, rel=1e-4)
