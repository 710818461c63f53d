"""Facts that a model tells of itself: refusals with the module and the way out, auxiliary losses, tokens and images."""

import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.capture.separation import check_separates
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.graph import Operator
from costmodel.model.work import Work
from costmodel.profiling.measure.memory import counted_graph
from costmodel.stages.strategies.division import Degrees, divided_work, why_whole
from planner.commands import main

WIDTH = 8


class Encoder(nn.Module):
    """Layers one of which is left out at random while the model trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layerdrop, self.layers = 0.1, nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if torch.rand([]) > self.layerdrop:
                x = layer(x)
        return x


class Drawn(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if random.random() > self.layerdrop:
                x = layer(x)
        return x


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if x.sum() > 0 else x


def model_of(module: nn.Module) -> TrainingModel:
    return TrainingModel("own", module, (torch.randn(4, WIDTH),), {}, None, False, torch.mean, {}, 4)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(WIDTH, WIDTH), Branching()), "in the module '1': .*branches on tensor values"),
        (nn.Sequential(Encoder()), "in the module '0': .*set layerdrop to 0: layers that are left out"),
        (nn.Sequential(Drawn()), "in the module '0': .*Python's random.*set layerdrop to 0"),
        (nn.Sequential(nn.BatchNorm1d(WIDTH, momentum=None)), "in the module '0': .*give its momentum a number"),
    ],
)
def test_what_cannot_be_captured_is_said_with_its_module_and_the_way_out(module: nn.Module, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        capture(model_of(module))


def test_a_loss_that_has_no_kernel_without_values_is_refused_in_words() -> None:
    """CTC under a dry run was a traceback."""
    long = torch.full((2,), 5)

    def loss(output: torch.Tensor) -> torch.Tensor:
        aligned = output.log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(aligned, torch.ones(2, 3, dtype=torch.long), long, long - 2)

    with torch.device("meta"):
        model = TrainingModel("own", nn.Linear(WIDTH, WIDTH), (torch.zeros(2, 5, WIDTH),), {}, None, False, loss, {}, 2)
    with pytest.raises(InvalidInput, match=r"does not run without values .*another loss of the same outputs"):
        counted_graph(capture(model), (2,))


def test_inputs_that_are_no_tensors_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from costmodel.capture.models import load_model

    (tmp_path / "graphmodels.py").write_text(
        "from torch import nn\nclass Batch: pass\n"
        "def build():\n    return nn.Linear(2, 2), (Batch(),), lambda out: out\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match=r"found an object of type Batch.*of a batch of graphs"):
        load_model("graphmodels:build", 2)


class Routed(nn.Module):
    """Hands on what evens out its experts, which is of the whole batch: no mean of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        shares = self.router(x).softmax(-1)
        return {"out": x * shares.sum(-1, keepdim=True), "aux_loss": 4 * shares.mean(0).square().sum()}


def test_the_auxiliary_loss_of_experts_is_named_and_not_called_contrastive() -> None:
    torch.manual_seed(0)

    def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
        return output["out"].square().mean() + 1e3 * output["aux_loss"]

    module = Routed()
    module.router.weight.data *= 10
    model = TrainingModel("own", module, (torch.randn(8, WIDTH),), {}, None, False, loss, {}, 8)
    assert check_separates(model).startswith("the loss holds an auxiliary loss of the experts (aux_loss)")


@pytest.mark.parametrize(("kind", "told"), [("convolution", True), ("scan", True), ("matmul", False)])
def test_what_reads_neighbours_does_not_divide_along_the_sequence(kind: str, told: bool) -> None:
    operator = Operator("conv", kind, "block.conv", work=Work(kind, "sequence", 64, inner=4, outer=4))
    assert ("of the module 'block.conv') reads neighbours" in why_whole(operator, Degrees(context=2))) == told


@pytest.mark.parametrize(("split", "told"), [("sequence", True), ("expert", False)])
def test_experts_that_the_executor_leaves_whole_are_not_spread(split: str, told: bool) -> None:
    """Such experts were priced under an expert degree as if each rank had all of them."""
    work = Work("matmul", split, 64, inner=4, outer=4, experts=8, active=2)
    found = why_whole(Operator("product", "grouped_mm", "block.experts", work=work), Degrees(expert=4))
    assert ("the experts of the module 'block.experts', which the executor leaves whole" in found) == told


@pytest.mark.parametrize(("split", "heads", "told"), [("sequence", 6, False), ("inner", 3, True)])
def test_attention_that_is_left_whole_is_priced_whole(split: str, heads: int, told: bool) -> None:
    """Each rank attends with all heads then, whose number need not divide; half of them were priced."""
    work = Work("attention", split, 64, inner=4, outer=4, heads=6, kv_heads=6, context=64)
    assert divided_work(work, Degrees(tensor=2), within=False).heads == heads
    assert ("has 6 heads" in why_whole(Operator("core", "attention", "own", work=work), Degrees(tensor=4))) == told


def test_images_are_no_tokens_and_megatron_has_no_model_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of 80 images a second said 80 tokens a second, and listed megatron."""
    monkeypatch.chdir(tmp_path)
    values = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    Path("config.json").write_text(json.dumps({**values, "intermediate_size": 128, "image_size": 32, "patch_size": 8}))
    assert main(["model", "config.json", "-o", "p.json", "--json"]) == 0
    capsys.readouterr()
    flags = ["--devices", "2", "--batch", "4", "--planner", "data-parallel", "-o", "plan.json", "--json"]
    assert main(["plan", "p.json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_per_s"] is None
    assert "megatron" not in found["runs_on"]
    assert "deepspeed" in found["runs_on"]


def test_a_sequence_is_asked_of_a_function_that_has_none() -> None:
    from costmodel.capture.models import load_model

    with pytest.raises(UsageError, match="has no parameter 'sequence'"):
        load_model("zoo:uno:small", 2, sequence=8)
