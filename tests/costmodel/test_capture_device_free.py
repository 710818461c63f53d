"""One model, one graph: captured on `meta`, as a dry run and a memory limit do, or with values."""

import pytest
import torch
from torch import nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture, operator_graph
from costmodel.capture.device_free import captured_alike
from costmodel.capture.models import load_model
from costmodel.model.profile import read_profile
from costmodel.profiling.dry import load_on_meta
from costmodel.profiling.options import Options
from planner.commands import main


def fingerprints(spec):
    on_meta = load_on_meta(Options(spec, (2,), dry_run=True))
    return [operator_graph(capture(model), (2,)).fingerprint for model in (on_meta, load_model(spec, 2))]


@pytest.mark.parametrize("name", ["bert", "gemma", "gpt2", "t5", "vit"])
def test_a_hugging_face_model_has_one_fingerprint_on_meta_and_with_values(name):
    pytest.importorskip("transformers", reason="transformers is not installed: its models are not tested")
    on_meta, with_values = fingerprints(f"tests.support.hugging_face_models:{name}")
    assert on_meta == with_values


def test_measured_under_a_memory_limit_a_models_plan_is_valid_for_the_model_itself(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed: its models are not tested")
    spec = "tests.support.hugging_face_models:mistral"
    profile, plan = str(tmp_path / "profile.json"), str(tmp_path / "plan")
    quick = ["--microbatch-sizes", "2", "--repeats", "1", "--companions", "0", "--no-links"]
    assert main(["profile", spec, "-o", profile, *quick, "--memory-limit", "0.0001"]) == 0
    assert "in_blocks" in read_profile(profile).extra
    assert main(["plan", profile, "--devices", "2", "--batch", "4", "--planner", "uniform", "-o", plan]) == 0
    assert main(["validate", plan, "--model", spec]) == 0


class Attending(nn.Module):
    """Puts heads together by a view or, after `contiguous`, by one that every layout allows."""

    def __init__(self, contiguous, dropout=0.0):
        super().__init__()
        self.inward = nn.Linear(16, 48)
        self.contiguous, self.dropout = contiguous, dropout

    def forward(self, x):
        heads = [part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.inward(x).chunk(3, -1)]
        out = nn.functional.scaled_dot_product_attention(*heads, dropout_p=self.dropout).transpose(1, 2)
        return (out.contiguous() if self.contiguous else out).view(*x.shape)


def captured(module):
    return capture(
        TrainingModel("own", module, (torch.randn(2, 3, 16),), {}, None, False, lambda out: out.mean(), {}, 2)
    )


def test_dropout_which_fused_attention_on_a_cpu_has_not_does_not_change_the_operators():
    plain, dropping = (captured(Attending(True, dropout)) for dropout in (0.0, 0.1))
    assert plain.operators == dropping.operators
    assert "contiguous" in plain.operators


def test_a_view_that_only_the_devices_own_attention_allows_is_captured_with_its_own_loss():
    module = Attending(contiguous=False)
    found = captured(module)
    leaf = torch.randn(2, 3, 16)
    torch.testing.assert_close(found.program.module(leaf)[0], module(leaf))


@pytest.mark.parametrize(
    ("index", "value"), [(0, 3.0), ((..., 1), 2), ((slice(1, None), 0), True), ([0, 1], 5.0), (True, 7), ((None, 1), 4)]
)
def test_numbers_written_into_a_tensor_are_those_that_torch_writes(index, value):
    ours, torchs = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)

    def write(into):
        into[index] = value

    captured_alike(lambda: write(ours))
    write(torchs)
    assert torch.equal(ours, torchs)
