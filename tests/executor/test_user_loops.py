"""Loops as people write them are exact, or refused by all ranks before a wrong step; ranks that differ end alike.

``python -m benchmarks.reliability --full --only user-loops`` (or ``ranks-disagree``) runs all.
"""

import os
import subprocess
import sys
from collections import deque
from functools import partial

import pytest
import torch

from costmodel.capture.attributes import Attributes
from costmodel.capture.batches import TrainingModel, as_trained
from costmodel.capture.capture import capture
from costmodel.errors import DoesNotMatch, InvalidInput
from executor.model.reachable import ReachableState, left_alone
from executor.plan_match.agreement import difference
from executor.plan_match.model_invariants import check_surroundings
from tests.support.loops.loop_models import WIDTH
from tests.support.loops.loops_captured import Annealed, Configured, Listed, Tower, WithTensor
from tests.support.loops.user_loops import RANKS, failures, loops
from tests.support.ranks.rank_pool import environment, free_port
from tests.support.repository import ROOT

EXACT_OR_REFUSED = [
    "anneals_a_temperature",
    "counts_its_calls",
    "gives_a_dictionary_in_another_order",
    "changes_a_number",
    "moves_a_codebook_and_recomputes",
    "divides_by_a_running_scale",
    "counts_choices_among_replicas",
    "hooks_the_whole_model_later",
    "penalizes_the_first_layer_later",
    "returns_a_loss_and_an_accuracy",
    "gives_a_target_a_sample",
    "changes_inputs_in_place",
]
DISAGREEING = [
    "plan_of_rank_1_is_cut_elsewhere",
    "code_of_rank_0_cannot_be_captured",
    "option_of_rank_1_has_another_rate",
    "batch_of_rank_0_shuffles_its_second_epoch",
]


def test_loops_have_the_plain_losses_and_state_or_are_refused_and_ranks_that_differ_end_alike():
    assert failures(EXACT_OR_REFUSED + DISAGREEING) == []


def test_there_are_forty_cases_in_which_ranks_disagree_of_four_kinds():
    names = list(loops(RANKS))
    assert len(names) >= 40
    assert {name.split("_")[0] for name in names} == {"plan", "code", "option", "batch"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"plan": "a"}, {"plan": "a"}], ""),
        ([{"plan": "a"}, {"plan": "b"}, {"plan": "a"}], "rank 1 differs from rank 0 in the plan"),
        ([{"plan": "b"}, {"plan": "a"}, {"plan": "a"}], "rank 0 differs from rank 1 in the plan"),
        (
            [{"option seed": "0"}, {"option seed": "1"}, {"option seed": "1"}, {"option seed": "0"}],
            "ranks 1 and 2 differ from rank 0 in option seed (1, not 0)",
        ),
        ([{"option lr": "1"}, {}], "rank 1 differs from rank 0 in option lr (nothing, not 1)"),
    ],
)
def test_the_ranks_that_are_fewer_are_named_with_what_they_have(rows, words):
    assert difference(rows) == words


def change(model, path, value):
    *names, last = path.split(".")
    for name in names:
        model = getattr(model, name)
    setattr(model, last, value)


@pytest.mark.parametrize(
    ("make", "path", "value", "named"),
    [
        (Annealed, "temperature", 2.0, ["temperature of the model"]),
        (Annealed, "note", 2.0, []),
        (Configured, "config.scale", 2.0, ["scale of config of the model"]),
        (Configured, "config.name", "other", []),
        (Listed, "weights", [1.0, 1.0, 1.0, 1.0], []),
        (Listed, "weights", [1.0, 1.0, 1.0, 2.0], ["weights of the model"]),
        (Annealed, "temperature", torch.tensor([1.0, 1.0]), ["temperature of the model"]),
        (Annealed, "forward", lambda x: x, ["forward of the model"]),
    ],
)
def test_only_values_that_the_models_code_reads_are_held(make, path, value, named):
    model = make()
    attributes = Attributes(model)
    change(model, path, value)
    assert [name for name, _, _ in attributes.changed()] == named


SILENT = """
import sys, time
import executor.communication.groups as groups
import torch.distributed as dist
groups.LIMIT_S = 3.0
if sys.argv[1] == "silent":
    dist.init_process_group("gloo")
    time.sleep(60)
from costmodel.errors import PeerLost
try:
    groups.ProcessGroups(int(sys.argv[2]), 2, 1.0)
except PeerLost as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_connects_and_says_nothing_ends_the_start_in_words(silent):
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SILENT, "silent" if rank == silent else "speaks", str(rank)],
            cwd=ROOT,
            env=os.environ | environment(rank, 2, port),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said, _ = started[1 - silent].communicate(timeout=60)
        assert started[1 - silent].returncode == 8
        assert f"rank {silent} has said nothing within the 3 s of the start" in said
    finally:
        for process in started:
            process.kill()


def test_what_a_loop_keeps_on_a_model_for_itself_is_taken_as_it_is():
    model = Tower()
    attributes = Attributes(model)
    model.epoch = 1
    assert attributes.changed() == []
    assert attributes.changed() == []


@pytest.mark.parametrize(("then", "now", "shown"), [([], {}, "<class 'list'>"), (int, float, "<class 'int'>")])
def test_classes_and_empty_containers_that_a_model_reads_have_words(then, now, shown):
    model = Listed()
    model.weights = then
    attributes = Attributes(model)
    model.weights = now
    assert [row[:2] for row in attributes.changed()] == [("weights of the model", shown)]


def test_tensors_are_compared_by_identity_in_a_traced_forward_too():
    """By value a trace would read a number of them, and one of equal value would pass for the one that was captured."""
    model = WithTensor()
    attributes = Attributes(model)
    program = torch.export.export(_Noted(model, attributes), (torch.zeros(2, WIDTH),), strict=False)
    assert not any("eq" in str(node.target) for node in program.graph.nodes)
    assert attributes.changed() == []
    model.scale = torch.tensor(1.0)
    assert [name for name, _, _ in attributes.changed()] == ["scale of the model"]


class _Noted(torch.nn.Module):
    """A model whose attributes are compared within its forward, as a capture does."""

    def __init__(self, model, attributes):
        super().__init__()
        self.model, self.attributes = model, attributes

    def forward(self, x):
        output = self.model(x)
        assert self.attributes.changed() == []
        return output


class HooksAnActivation(Tower):
    """Scales a gradient on its way, which no captured program holds."""

    def forward(self, x):
        x = self.layers[0](x)
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.1)
        return super().forward(x)


def test_a_hook_on_an_activations_gradient_is_refused_at_the_capture():
    model = TrainingModel("hooks", HooksAnActivation(), (torch.zeros(4, WIDTH),), {}, None, False, torch.sum, {}, 4)
    with pytest.raises(InvalidInput, match=r"the forward hooks into a gradient \(Tensor.register_hook\)"):
        capture(model, 2)


def test_a_step_within_autocast_is_refused():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(DoesNotMatch, match="give autocast= to the pipeline"):
        check_surroundings("cpu")
    check_surroundings("cpu")


class Meter:
    total = [0]  # noqa: RUF012 - of the class, as users have it

    def __init__(self) -> None:
        self.count, self.average, self.last = 0, torch.zeros(2), {"few": deque([1], maxlen=2)}

    def measure(self, change: str) -> None:
        if change == "count":
            self.count += 1
        elif change == "average":
            self.average += 1
        elif change == "few":
            self.last["few"].append(2)
        elif change == "total":
            self.total[0] += 1


@pytest.mark.parametrize("change", ["count", "average", "few", "total", ""])
def test_what_a_call_changes_within_reach_is_named_and_put_back(change):
    meter = Meter()
    loss = partial(lambda kept, change: kept.measure(change), meter)
    with left_alone(loss):
        state = ReachableState(loss)
        loss(change)
        assert [name.split()[0] for name in state.changed()] == [change][: bool(change)]
    assert (meter.count, meter.average.tolist(), [*meter.last["few"]], Meter.total) == (0, [0, 0], [1], [0])


@pytest.mark.parametrize("trains", [True, False])
def test_parts_that_are_evaluated_stay_so_in_a_model_that_trains(trains):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    model[0].eval()
    model.training = trains
    assert as_trained(model)[0].training is not trains
