"""Models that export refuses: one eager run is written down, to plan with and never to run."""

import json
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from torch import nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.capture.parts import extract
from costmodel.capture.separation import check_separates
from costmodel.errors import InvalidInput
from costmodel.model.profile import write_profile
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile
from planner.commands import main

ROUTED = """
import torch
from torch import nn

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.tied = nn.Linear(8, 2), nn.Linear(8, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        with torch.no_grad():
            chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().squeeze(-1)
            if rows.numel() > 0:
                out = out.index_add(0, rows, expert(x[rows]))
        return self.tied(torch.relu_(self.norm(Doubled.apply(out)))) @ self.tied.weight.t() + x.detach()

def build(batch=8):
    torch.manual_seed(0)
    return Experts(), (torch.randn(batch, 8),), lambda out: out.square().mean()
"""


@pytest.fixture(autouse=True)
def routed_model(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    (tmp_path / "routedmodel.py").write_text(textwrap.dedent(ROUTED))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("routedmodel", None)
    return load_model("routedmodel:build")


def gradients(model):
    found = {name: p.grad for name, p in model.module.named_parameters()}
    model.module.zero_grad(set_to_none=True)
    return found


def test_without_leave_the_capture_is_refused_and_says_why_and_what_is_left(routed_model):
    with pytest.raises(InvalidInput, match=r"cannot capture.*torch.where.*profiled and planned, not run"):
        capture(routed_model)


def test_the_written_down_run_gives_the_models_own_loss_and_gradients(routed_model):
    model = routed_model
    buffers = {name: value.clone() for name, value in model.module.named_buffers()}
    loss = model.evaluate(model.module(*model.args), None)[0]
    loss.backward()
    expected = gradients(model)
    for name, value in model.module.named_buffers():
        value.data.copy_(buffers[name])
    captured = capture(model, 8, plan_only=True)
    assert (captured.static_batch, "torch.export" in captured.program.plan_only) == (8, True)
    found = extract(captured, captured.operators)(captured.bind(model))["loss"]
    found.backward()
    torch.testing.assert_close(found, loss)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_a_leaf_module_is_one_operator_and_what_mutates_stays_with_its_producer(routed_model):
    captured = capture(routed_model, 8, plan_only=True)
    kinds = {group.module: group.kind for group in captured.groups.values()}
    assert kinds["experts.0"] == "t+addmm"
    assert kinds["norm"].endswith("relu")
    assert "Doubled" in [group.kind for group in captured.groups.values()]


def test_the_profile_is_marked_plan_only_and_the_user_is_told_why(routed_model):
    said = []
    found = profile(Options("routedmodel:build", (8,), repeats=1, links=False), say=said.append)
    assert "torch.export cannot capture the model" in found.origin.plan_only
    assert found.whole.split == ()
    assert any(line.startswith("plan only: ") for line in said)
    assert all(t.forward_ns[0] >= 0 for t in found.times)


def test_it_is_planned_and_validated_and_every_answer_says_why_it_does_not_run(routed_model, tmp_path, capsys):
    profile_file, plan_file = tmp_path / "profile.json", tmp_path / "plan.json"
    write_profile(profile_file, profile(Options("routedmodel:build", (8,), repeats=1, links=False)))
    flags = ["--devices", "2", "--batch", "16", "--planner", "uniform", "--optimizer", "none"]
    assert main(["plan", str(profile_file), *flags, "-o", str(plan_file)]) == 0
    validate = ["validate", str(plan_file), "--model", "routedmodel:build", "--json"]
    capsys.readouterr()
    assert main(validate) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert answer["plan_only"].startswith("torch.export cannot capture the model")
    body = json.loads(plan_file.read_text())
    assert "executor" not in body["runs_on"]
    plan_file.write_text(json.dumps({**body, "runs_on": ["executor"]}))
    assert main(validate) == 7
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["kind"], problem["place"]) == ("model", "runs_on")


def test_a_model_that_export_takes_is_not_plan_only():
    captured = capture(load_model("zoo:gpt:small", 2), plan_only=True)
    assert captured.program.plan_only == ""


class Chosen(nn.Linear):
    """Only the rows that a mask of values chooses; export takes it, nobody knows the size before it has run."""

    def forward(self, x):
        return super().forward(x[x[:, 0] > -100])


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * x.abs().max().item()


@pytest.mark.parametrize("kind", [Chosen, Scaled])
def test_sizes_and_numbers_that_are_read_from_values_make_a_model_plan_only_and_are_named_with_their_place(kind):
    model = model_with(lambda out: out.square().mean(), module=kind(6, 6))
    with pytest.raises(
        InvalidInput, match=r"read from tensor values by (index|item) .* at test_profiling_plan_only.py:"
    ):
        capture(model)
    assert capture(model, 4, plan_only=True).static_batch == 4


class Wrapped:
    def __init__(self, value):
        self.value = value


class Wrapping(nn.Linear):
    def forward(self, x):
        return Wrapped(super().forward(x))


def test_an_output_in_which_no_tensors_are_found_is_refused_with_what_to_return():
    model = model_with(lambda out: out.value.square().mean(), module=Wrapping(6, 6))
    with pytest.raises(InvalidInput, match="returns an object of type Wrapped; return tensors in tuples"):
        capture(model, 4, plan_only=True)


def contrastive(scores):
    return nn.functional.cross_entropy(scores @ scores.t(), torch.arange(len(scores)))


def cosine(scores):
    return nn.functional.cross_entropy(scores @ scores.t(), torch.arange(len(scores)))


def model_with(loss, batch=4, module=None):
    torch.manual_seed(0)
    return TrainingModel("own", module or nn.Linear(6, 6), (torch.randn(batch, 6),), {}, None, False, loss, {}, batch)


def test_a_contrastive_loss_is_refused_by_its_name():
    with pytest.raises(InvalidInput, match="the loss 'contrastive' compares the samples"):
        check_separates(model_with(contrastive))


def test_a_loss_that_does_not_separate_is_refused_by_its_numbers():
    with pytest.raises(InvalidInput, match=r"the loss 'cosine' of a batch is .* does not separate over micro-batches"):
        check_separates(model_with(cosine))


@pytest.mark.parametrize(
    ("loss", "remark"),
    [
        (lambda out: out.square().mean(), ""),
        (lambda out: (out.square().sum(), len(out)), ""),
        (lambda out: out.square().sum(), "a sum over samples"),
        (lambda out: (out[:, 0].exp() * out[:, 1]).sum() / out[:, 0].exp().sum(), "weighs micro-batches"),
    ],
)
def test_means_and_sums_with_weights_separate_and_other_weighings_are_remarked_on(loss, remark):
    assert check_separates(model_with(loss)).startswith(
        f"the loss {'is ' * remark.startswith('a')}{remark}" if remark else ""
    )


def test_batch_statistics_and_dropout_are_no_reason_to_refuse():
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert check_separates(model_with(lambda out: out.square().mean(), module=module)) == ""
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module[1].training


@pytest.mark.parametrize("trains", ["frozen", "detached"])
def test_a_loss_through_which_no_gradient_flows_is_refused(trains):
    module = nn.Linear(6, 6).requires_grad_(trains != "frozen")
    with pytest.raises(InvalidInput, match="no gradient flows from the loss to any parameter"):
        check_separates(model_with(lambda out: (out.detach() if trains == "detached" else out).mean(), module=module))


def test_rounding_in_bfloat16_is_no_reason_to_refuse_or_to_remark():
    for seed in range(8):
        torch.manual_seed(seed)
        model = model_with(lambda out: out.square().mean(), batch=8, module=nn.Linear(6, 6).bfloat16())
        inputs = (torch.randn(1, 6).repeat(8, 1) * (1 + 1e-3 * torch.randn(8, 1))).bfloat16()
        assert check_separates(replace(model, args=(inputs,))) == ""
