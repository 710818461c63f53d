"""Adding gradients to those that are there: a stage pays for its own parameters, by their times or by their bytes."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from costmodel.errors import InvalidInput
from costmodel.machines.catalogue import device
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.accumulation import accumulation_of
from costmodel.model.graph import LOSS, Operator, OperatorGraph, Parameter, Tensor
from costmodel.model.profile import Device, OperatorTimes, Profile, read_profile, write_profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile
from costmodel.roofline import scale_profile
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.model import StrategyModel
from costmodel.stages.strategies.training import TrainingJob
from planner.search.solvers.relaxation.build import cut_data
from tests.support.pipelines import cuts_of, pipelines

NORMS = tuple(f"norm{i}" for i in range(6))
CLUSTER = Cluster((DeviceType("cpu", 10**9, "cpu"),), (Host("cpu", 2),), (LinkGroup("local", 0, 1e9, 1),))
MEASURED = {**dict.fromkeys(NORMS, 100), "large": 300, "tied": 50}


def net(accumulate_of: dict[str, int]) -> Profile:
    """Six tiny parameters, one large, one that two operators read and a frozen one; 950 ns of accumulation."""
    parameters = [Parameter(name, (1,), 4) for name in NORMS]
    parameters += [Parameter("large", (1000,), 4000), Parameter("tied", (1,), 4), Parameter("frozen", (1,), 4, False)]
    readers = [*((name,) for name in NORMS), ("large", "tied"), ("tied", "frozen"), ()]
    names = [*(f"op{i}" for i in range(8)), LOSS]
    operators = [
        Operator(name, LOSS if name == LOSS else "linear", parameters=row)
        for name, row in zip(names, readers, strict=True)
    ]
    tensors = [Tensor(a, a, (b,), (8,)) for a, b in pairwise(names)]
    graph = OperatorGraph("net", tuple(operators), tuple(tensors), tuple(parameters))
    times = (OperatorTimes((10,), (10,), (10,), (0.0,)),) * 9
    known = Device("cpu", "h100", 10**9, "h100-sxm-80")
    whole = WholeModelMeasurements((9 * 30 + 950,), accumulate_ns=950)
    return Profile(graph, known, "float32", (1,), times, whole, accumulate_of=accumulate_of)


def added_ns(found: Profile, operators: range) -> int:
    model = StrategyModel(found, CLUSTER, 1, TrainingJob(optimizer="none"))
    cost = model.stage(operators, StageConfig(), (0,), num_microbatches=2)
    assert isinstance(cost.backward_weight_ns, int)
    return cost.backward_weight_ns - 10 * len(operators)


def test_a_stage_of_tiny_parameters_pays_for_their_calls_and_the_one_with_the_large_for_one() -> None:
    assert added_ns(net(MEASURED), range(6)) == 600
    assert added_ns(net(MEASURED), range(6, 9)) == 350


def test_a_profile_without_times_by_parameter_divides_by_bytes() -> None:
    assert added_ns(net({}), range(6)) == round(950 * 24 / 4028)
    assert added_ns(net({}), range(6, 9)) == round(950 * 4004 / 4028)


def test_a_tied_parameter_counts_once_in_a_stage_and_in_every_stage_that_reads_it() -> None:
    found = net(MEASURED)
    assert [added_ns(found, span) for span in (range(6, 8), range(6, 7), range(7, 8))] == [350, 350, 50]


def test_all_parameters_together_take_the_whole_and_frozen_ones_nothing() -> None:
    for known in ({}, MEASURED):
        found = accumulation_of(net(known))
        assert found.over(p.name for p in net(known).graph.parameters) == 950
        assert found.over(["frozen"]) == found.at_least("frozen") == 0
        assert sum(map(found.at_least, found.weight_of)) <= 950


def test_the_relaxation_of_the_cut_counts_each_parameter_with_its_first_reader() -> None:
    cuts = cuts_of(pipelines(net(MEASURED), 2, 2))
    assert sum(cut_data(cuts, 0, binding=False).backward) == 9 * 20 + 950


def test_times_by_parameter_are_written_and_read_back(tmp_path: Path) -> None:
    for name, known in (("new", MEASURED), ("old", {})):
        write_profile(tmp_path / name, net(known))
        assert read_profile(tmp_path / name) == net(known)
    rows = json.loads((tmp_path / "old").read_text())["parameters"]
    assert not any("accumulate_ns" in row for row in rows)


def test_a_profile_that_knows_some_trainable_parameters_only_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the parameter 'large' has no accumulate_ns and others have"):
        net({name: value for name, value in MEASURED.items() if name != "large"})


def test_scaled_to_another_device_the_parameters_still_sum_to_the_whole() -> None:
    found = scale_profile(net(MEASURED), "a100-sxm-80")
    ratio = device("h100-sxm-80").memory_gbs / device("a100-sxm-80").memory_gbs
    assert found.accumulate_of == {name: round(value * ratio) for name, value in MEASURED.items()}
    assert found.whole.accumulate_ns == sum(found.accumulate_of.values())


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.table, self.head, self.last = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, out)
        self.head.weight = self.table.weight
        self.table.bias.requires_grad_(False)

    def forward(self, x):
        x = self.table(x)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(self.head(x))

def build(batch=4):
    return Net(4), (torch.randn(batch, 8, requires_grad=True),), lambda out: out.square().mean()

def other(batch=4):
    return Net(6), (torch.randn(batch, 8, requires_grad=True),), lambda out: out.square().mean()
"""
TRAINED = {"table.weight", "last.weight", "last.bias"} | {
    f"layers.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")
}


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "accumulating.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("accumulating", None)
    torch.set_num_threads(1)
    return "accumulating"


def test_a_measured_profile_knows_every_trained_parameter_once_and_they_sum_to_the_whole(own_model: str) -> None:
    found = profile(Options(f"{own_model}:build", (2,), repeats=3, links=False))
    assert set(found.accumulate_of) == TRAINED
    assert sum(found.accumulate_of.values()) == found.whole.accumulate_ns > 0


def test_in_blocks_alike_parameters_take_the_same_and_they_sum_to_the_whole(own_model: str) -> None:
    found = profile(Options(f"{own_model}:build", (2,), repeats=3, links=False, memory_limit_bytes=2048))
    assert found.extra["in_blocks"]
    assert set(found.accumulate_of) == TRAINED
    assert sum(found.accumulate_of.values()) == found.whole.accumulate_ns
    assert len({found.accumulate_of[f"layers.{i}.weight"] for i in range(3)}) == 1


def test_reusing_a_profile_takes_the_times_of_old_parameters_and_measures_new_ones(
    own_model: str, tmp_path: Path
) -> None:
    old = profile(Options(f"{own_model}:build", (2,), repeats=3, links=False))
    marked = {name: 10**9 + i for i, name in enumerate(sorted(old.accumulate_of))}
    for name, known in (("old.json", marked), ("bare.json", {})):
        write_profile(tmp_path / name, replace(old, accumulate_of=known))
    again = Options(f"{own_model}:other", (2,), repeats=3, links=False, reuse=str(tmp_path / "old.json"))
    found = profile(again)
    assert set(found.accumulate_of) == TRAINED
    assert found.accumulate_of["table.weight"] == marked["table.weight"]
    assert max(found.accumulate_of["last.weight"], found.accumulate_of["last.bias"]) < 10**9
    assert sum(found.accumulate_of.values()) == found.whole.accumulate_ns
    assert profile(replace(again, reuse=str(tmp_path / "bare.json"))).accumulate_of == {}
