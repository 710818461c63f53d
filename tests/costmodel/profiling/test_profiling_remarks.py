"""What the profiler tells beside the profile: each remark with its way out, once, and none without cause."""

import argparse
import sys
from dataclasses import replace

import pytest
import torch

from costmodel.errors import InvalidInput
from costmodel.profiling.command import _tell_if_weak, add_arguments, run
from costmodel.profiling.dry import dry_profile
from costmodel.profiling.measure.tensor import degrees_without_shards
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile
from costmodel.zoo.generated import generate

OWN = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self, how=None):
        super().__init__()
        self.first, self.second, self.how = nn.Linear(8, 8), nn.Linear(8, 8), how

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.second(h) if self.how is None else checkpoint(self.second, h, use_reentrant=self.how == "reentrant")

class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

def loss(out):
    return out.square().mean()

def plain(batch=4):
    return Net(), (torch.randn(batch, 8),), loss

def reentrant(batch=4):
    return Net("reentrant"), (torch.randn(batch, 8),), loss

def without_reentrance(batch=4):
    return Net("other"), (torch.randn(batch, 8),), loss

def branching(batch=4):
    return Branching(8, 8), (torch.ones(batch, 8),), loss

def undefined(batch=4):
    return Net(), (torch.randn(batch, 8),), lambda out: out.mean() * float("nan")

def endless(batch=4):
    return Net(), (torch.randn(batch, 8),), lambda out: out.square().mean() + float("inf")
"""
CHECKPOINTING = (
    "the model's own gradient checkpointing is left out: saved bytes and times are those without it; what is "
    "recomputed is the plan's choice"
)


@pytest.fixture(autouse=True)
def own_models(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    (tmp_path / "remarkmodels.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("remarkmodels", None)


def options(name, **more):
    return Options(f"remarkmodels:{name}", (2,), repeats=1, links=False, **more)


def told(name, journal=None, resume=False, **more):
    """Profile a model and return the lines that were said."""
    lines = []
    profile(options(name, **more), journal, resume, lines.append)
    return lines


@pytest.mark.parametrize("name", ["reentrant", "without_reentrance"])
def test_gradient_checkpointing_that_the_capture_leaves_out_is_told_once(name):
    assert told(name).count(CHECKPOINTING) == 1


@pytest.mark.parametrize("name", ["reentrant", "without_reentrance"])
def test_a_dry_run_and_blocks_tell_of_checkpointing_too(name):
    dry = []
    dry_profile(options(name, dry_run=True), dry.append)
    assert dry.count(CHECKPOINTING) == 1
    assert told(name, memory_limit_bytes=2000).count(CHECKPOINTING) == 1


def test_a_model_that_gives_no_cause_is_not_remarked_on(tmp_path):
    lines = told("plain", tmp_path / "journal", tensor=(2,))
    words = ("checkpointing", "resume", "nothing", "the loss")
    assert [line for line in lines if any(word in line for word in words)] == []


@pytest.mark.parametrize(("name", "value"), [("undefined", "nan"), ("endless", "inf")])
def test_a_loss_that_is_no_finite_number_is_told_once(name, value):
    remark = f"the loss is {value} on the model's own inputs: nothing is learned so; look at inputs, labels, dtype"
    assert [line for line in told(name) if "the loss" in line] == [remark]


@pytest.mark.parametrize("more", [{"dry_run": True}, {"memory_limit_bytes": 1}])
def test_without_values_a_model_that_export_refuses_is_told_to_be_profiled_whole(more):
    way_out = "needs values: profile it whole, without --dry-run and --memory-limit$"
    with pytest.raises(InvalidInput, match=way_out) as caught:
        (dry_profile if "dry_run" in more else profile)(options("branching", **more))
    assert "profiled and planned, not run" not in str(caught.value)


def test_numbers_of_ranks_that_divide_no_layer_are_named():
    remark = (
        "--tensor 1,3: nothing measured, no linear layer and no attention divides into that many shards; choose "
        "divisors of the layers' widths"
    )
    assert [line for line in told("plain", tensor=(1, 2, 3)) if "nothing measured" in line] == [remark]


def test_a_number_of_ranks_that_cuts_one_layer_in_one_way_has_measured_something():
    assert degrees_without_shards({"linear": {"2/row": []}, "linear_1": {"4/column": []}}, (2, 4, 8)) == (8,)


def test_a_resumed_run_says_how_many_items_it_took_over(tmp_path):
    journal = tmp_path / "journal"
    assert [line for line in told("plain", journal) if "resume" in line] == []
    count = len(journal.read_text().splitlines()) - 1
    remark = f"resumed: {count} measured items are taken over from {journal}"
    assert [line for line in told("plain", journal) if "resume" in line] == [remark]
    assert [line for line in told("plain", journal, resume=True) if "resume" in line] == [remark]


def test_resume_without_a_journal_says_that_it_begins_anew(tmp_path):
    remark = f"--resume: there is no measured item in {tmp_path / 'journal'}; beginning anew"
    assert [line for line in told("plain", tmp_path / "journal", resume=True) if "resume" in line] == [remark]


@pytest.mark.parametrize(("coverage", "weak"), [(0.894, True), (0.9, False), (1.0, False)])
def test_a_profile_whose_operators_account_for_less_than_nine_tenths_is_called_weak(coverage, weak, capsys):
    found = replace(generate("random:12:0"), extra={"unscaled": {"coverage": [coverage]}})
    _tell_if_weak(found)
    remark = (
        "penstock profile: a weak profile: at micro-batch size 1 operators account for 89% of the step; they are so "
        "small that marks and Python are the time; give larger --microbatch-sizes\n"
    )
    assert capsys.readouterr().err == (remark if weak else "")


def test_a_dry_run_has_no_times_that_could_be_weak(capsys):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    run(parser.parse_args(["remarkmodels:plain", "-o", "profile.json", "--dry-run"]))
    assert "weak" not in capsys.readouterr().err
