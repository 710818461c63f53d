"""Linear layers that tensor parallelism divides in pairs: which are found, and which must not be."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture, capture, operator_graph
from costmodel.capture.models import load_model
from costmodel.capture.pairs import pairs_of
from costmodel.capture.works import with_works

WIDTH = 16


class Block(nn.Module):
    """Linear layers up and down with something between, in the place of a layer's feed-forward part."""

    def __init__(self, between: str, num_up: int = 1, wide: int = 2 * WIDTH) -> None:
        super().__init__()
        self.between = between
        self.up = nn.ModuleList(nn.Linear(WIDTH, wide) for _ in range(num_up))
        self.norm = nn.LayerNorm(wide)
        self.down = nn.Linear(wide // 2 if between in ("packed", "halves") else wide, WIDTH)
        if between == "tied":
            self.down.weight = nn.Parameter(self.up[0].weight.detach().t().contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = [layer(x) for layer in self.up]
        return x + self.down(self._between(*inner))

    def _between(self, y: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        match self.between:
            case "gelu":
                return F.gelu(y)
            case "gated":
                return F.silu(y) * others[0]
            case "packed":
                gate, value = y.chunk(2, -1)
                return F.silu(gate) * value
            case "halves":
                return F.silu(y[..., ::2]) * y[..., 1::2]
            case "softmax":
                return y.softmax(-1)
            case "norm":
                return F.normalize(y, dim=-1)
            case "weights":
                return self.norm(y)
            case "heads":
                return y.view(*y.shape[:2], -1, 4).softmax(-1).flatten(2)
            case "fixed heads":
                return y.view(*y.shape[:2], 8, 4).softmax(-1).flatten(2)
            case "flipped":
                return y.flip(-1)
            case "dropped":
                return F.dropout(y, 0.5)
            case "masked":
                kept = torch.arange(y.shape[-1]) % 2 == 0
                return torch.where(kept, y, y - y.mean(-1, keepdim=True))
            case "small":
                return (y / 1e4).softmax(-1)
            case "clipped":
                return y * (50 / y.abs().amax(-1, keepdim=True).clamp(min=50))
            case _:
                return y


def captured(between: str, **options: int) -> Capture:
    model = nn.Sequential(*(Block(between, **options) for _ in range(2)))
    return capture(TrainingModel("blocks", model, (torch.randn(4, 3, WIDTH),), {}, None, False, torch.mean, {}, 4))


@pytest.mark.parametrize(("between", "num_up"), [("gelu", 1), ("gated", 2), ("heads", 1), ("plain", 1), ("halves", 1)])
def test_layers_up_and_down_are_a_pair_whatever_is_done_to_each_value_between(between: str, num_up: int) -> None:
    found = captured(between, num_up=num_up)
    pairs = pairs_of(found)
    assert [found.groups[pair.row].module for pair in pairs] == ["0.down", "1.down"]
    assert [found.groups[name].module for name in pairs[0].columns] == [f"0.up.{i}" for i in range(num_up)]


@pytest.mark.parametrize(
    "between",
    ["packed", "softmax", "norm", "weights", "fixed heads", "flipped", "dropped", "masked", "small", "clipped"],
)
def test_what_looks_at_values_of_both_parts_makes_no_pair(between: str) -> None:
    """Gate and value in one weight, sums over what would be divided, weights, a number of heads, another order."""
    assert pairs_of(captured(between)) == ()


def test_a_width_that_does_not_divide_makes_no_pair() -> None:
    assert pairs_of(captured("gelu", wide=2 * WIDTH + 1)) == ()


class Twice(nn.Module):
    """A layer whose output, or weight, is used beside the pair that it could be of."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layers = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(WIDTH, WIDTH), "down": nn.Linear(WIDTH, WIDTH)})])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, down = self.layers[0]["up"], self.layers[0]["down"]
        inner = up(x)
        beside = {"output": inner, "call": up(x.sin()), "weight": x @ up.weight, "nothing": x}[self.how]
        return down(F.gelu(inner)) + beside  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["output", "call", "weight"])
def test_what_others_use_makes_no_pair(how: str) -> None:
    model = TrainingModel("twice", Twice(how), (torch.randn(4, WIDTH),), {}, None, False, torch.mean, {}, 4)
    assert pairs_of(capture(model)) == ()


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        ("llama", ["self_attn.o_proj", "mlp.down_proj"]),
        ("bert", ["attention.output.dense", "output.dense"]),
        ("vit", ["attention.o_proj", "mlp.fc2"]),
        ("gpt2", []),
    ],
)
def test_attention_divides_by_heads_where_its_projections_are_layers_of_their_own(model: str, rows: list[str]) -> None:
    found = capture(load_model(f"tests.support.hugging_face_models:{model}", 2))
    pairs = pairs_of(found)
    ends = [found.groups[pair.row].module for pair in pairs]
    assert all(end.endswith(row) for end, row in zip(ends, rows * (len(ends) // max(1, len(rows))), strict=True))
    assert bool(pairs) == bool(rows)
    works = {o.name: o.work for o in with_works(operator_graph(found, (2,)), found).operators}
    assert all(works[name].split == "column" for pair in pairs for name in pair.columns)
    for pair in pairs:
        heads = [works[name].kv_heads for name in pair.inner if works[name].kind == "attention"]
        assert works[pair.row].parts == pair.parts == (heads or [32])[0]  # 32 is how wide these models are between
    losses = {name: work for name, work in works.items() if work and work.kind == "loss"}
    assert max(work.tokens for work in losses.values()) == (1 if model == "vit" else 8)
    assert all((work is None) != bool(pairs) for name, work in works.items() if name not in losses)
