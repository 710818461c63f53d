"""Blocks that compute the same are captured once, and their profile is that of a capture of all of them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from costmodel.architectures.command import make
from costmodel.model.profile import Profile
from tests.support.transformers_families import EXPERTS, TEXT, WIDE

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from costmodel.capture import repeated_blocks as blocks  # noqa: E402 - imports torch
from costmodel.profiling.dry import load_on_meta  # noqa: E402 - imports torch
from costmodel.profiling.options import Options  # noqa: E402 - imports torch

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**TEXT, "num_hidden_layers": 5},
    "qwen3_moe": {**EXPERTS, "num_hidden_layers": 5},
    "t5": {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 6, "num_decoder_layers": 1},
}
"""One block of each is not computed."""
OWN = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window, self.norm = window, nn.LayerNorm(16)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.feed = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        batch, length, _ = x.shape
        y = self.norm(x)
        heads = (f(y).view(batch, length, 2, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        place = torch.arange(length, device=x.device)
        near = (place[:, None] - place).abs() < self.window if self.window else None
        read = F.scaled_dot_product_attention(*heads, attn_mask=near)
        x = x + self.out(read.transpose(1, 2).reshape(batch, length, -1))
        return x + self.feed(x)

class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.blocks = nn.ModuleList(Block(4 * (i % 2)) for i in range(8))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = self.called(block, x)
        return self.head(x)

    def called(self, block, x):
        return block(x)

class Unseen(Windows):
    def called(self, block, x):
        return block.forward(x)

def of(model, batch):
    tokens = torch.zeros(batch, 12, dtype=torch.long)
    return model, (tokens,), tokens, lambda output, targets: F.cross_entropy(output.flatten(0, 1), targets.flatten())

def windows(batch=2):
    return of(Windows(), batch)

def unseen(batch=2):
    return of(Unseen(), batch)

def row(batch=2):
    return of(nn.Sequential(nn.Embedding(32, 16), *(Block(0) for _ in range(6)), nn.Linear(16, 32)), batch)
"""


def written(path: Path, model_type: str, **keys: Any) -> str:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    path.write_text(json.dumps({"model_type": model_type, **keys}))
    return str(path)


def in_order(profile: Profile) -> list[Any]:
    """Return all that a profile says, operators by position and storages by their first use."""
    place = {operator.name: i for i, operator in enumerate(profile.graph.operators)}
    seen: dict[int, int] = {-1: -1}
    made: dict[str, list[Any]] = {name: [] for name in place}
    for t in profile.graph.tensors:
        storage = seen.setdefault(t.storage, len(seen))
        made[t.producer].append(([place[name] for name in t.consumers], t.size_bytes, t.gradient, storage))
    rows: list[Any] = [
        (o.kind, o.module, o.flop, o.parameters, o.parameter_bytes, o.output_bytes, o.trainable, o.work, made[o.name],
         sorted((seen.setdefault(s.storage, len(seen)), s.size_bytes, s.fixed) for s in o.saved), times)
        for o, times in zip(profile.graph.operators, profile.times, strict=True)
    ]  # fmt: skip
    return [*rows, profile.graph.parameters]


@pytest.mark.parametrize("model_type", SHAPES)
def test_the_profile_is_that_of_a_capture_of_all_blocks(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "config.json", model_type, **SHAPES[model_type])
    short, _ = make(path, "h100-sxm-80", (2,), 16, source="captured")
    monkeypatch.setattr(blocks, "repeated_blocks", lambda model: blocks.RepeatedBlocks())
    whole, _ = make(path, "h100-sxm-80", (2,), 16, source="captured")
    assert in_order(short) == in_order(whole)
    assert short.graph.fingerprint == whole.graph.fingerprint


@pytest.mark.parametrize(("function", "computed"), [("windows", 6), ("row", 4), ("unseen", 8)])
def test_a_module_of_ones_own_has_the_operators_that_the_executor_captures(
    function: str, computed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names too, by which a plan is matched with the program; blocks that are called past their hooks all compute."""
    torch.set_num_threads(1)
    (tmp_path / "repeatedmodels.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("repeatedmodels", None)
    found: list[blocks.RepeatedBlocks] = []
    search = blocks.repeated_blocks
    monkeypatch.setattr(blocks, "repeated_blocks", lambda model: found.append(search(model)) or found[-1])
    short, _ = make(f"repeatedmodels:{function}", "h100-sxm-80", (2,))
    assert computed == 8 - len(found[0].passed)
    monkeypatch.setattr(blocks, "repeated_blocks", lambda model: blocks.RepeatedBlocks())
    whole, _ = make(f"repeatedmodels:{function}", "h100-sxm-80", (2,))
    assert in_order(short) == in_order(whole)
    assert short.graph.fingerprint == whole.graph.fingerprint


def test_each_kind_of_block_is_found_with_the_second_that_is_like_it(tmp_path: Path) -> None:
    """Every third layer attends to all, the others within a window."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 4
    path = written(
        tmp_path / "config.json", "gemma3_text", **WIDE | {"num_hidden_layers": 12},
        sliding_window=8, layer_types=kinds,
    )  # fmt: skip
    found = blocks.repeated_blocks(load_on_meta(Options(path, (1,), sequence=16)))
    numbers = {int(path.rpartition(".")[2]): int(like.rpartition(".")[2]) for path, like in found.like.items()}
    assert numbers == {4: 3, 6: 3, 7: 3, 8: 5, 9: 3, 10: 3}


def test_few_blocks_are_captured_one_by_one(tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", "llama", **TEXT | {"num_hidden_layers": 4})
    assert blocks.repeated_blocks(load_on_meta(Options(path, (1,), sequence=16))) == blocks.RepeatedBlocks()
