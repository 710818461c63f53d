"""What operators have alive while they run: measured in a step, and what follows for a stage's memory."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.model.profile import read_profile, write_profile
from costmodel.profiling.measure.memory import observe_memory
from costmodel.profiling.measure.walk import Walk
from costmodel.profiling.measure.workspace_memory import working_bytes
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob
from costmodel.stages.strategies.workspace_memory import WorkspaceMemory
from tests.support.gpt_graph import cluster, gpt
from tests.support.schema_corpus import validator

WIDTH, SAMPLES = 64, 32
VALUE = 4 * WIDTH * SAMPLES


class Wide(nn.Module):
    """Makes three values of the width at once, and keeps none of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x, x], -1).sum(-1, keepdim=True) + x


def test_an_operators_temporaries_and_gradients_are_seen_and_what_is_saved_is_not() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Wide(), nn.Tanh())
    inputs = (torch.randn(SAMPLES, WIDTH, requires_grad=True),)
    piece = TrainingModel("wide", model, inputs, {}, None, False, torch.sum, {}, SAMPLES)
    captured = capture(piece)
    walk = Walk(captured)
    saved = observe_memory(walk, piece).saved
    found = working_bytes(walk, piece, saved)
    wide = next(name for name, group in captured.groups.items() if "cat" in group.kind)
    tanh = next(name for name, group in captured.groups.items() if "tanh" in group.kind)
    assert saved[tanh] == ((saved[tanh][0][0], VALUE),)
    assert 3 * VALUE <= found[wide] <= 5 * VALUE
    assert VALUE <= found[tanh] <= 2 * VALUE  # its gradient and its input's; its output is saved
    assert all(parameter.grad is not None for parameter in model.parameters())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12), st.data())
def test_a_stage_of_neighbours_and_one_of_any_operators_are_judged_alike(rows, data) -> None:
    working = WorkspaceMemory([w for w, _ in rows], [(i, i, kept) for i, (_, kept) in enumerate(rows)])
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    kept = [rows[i][1] for i in range(start, stop)]
    highest = max(rows[i][0] + sum(kept[: i - start + 1]) for i in range(start, stop))
    assert working.over(range(start, stop)) == max(0, highest - sum(kept))
    chosen = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    own = [rows[i][1] for i in chosen]
    highest = max(rows[i][0] + sum(own[: k + 1]) for k, i in enumerate(chosen))
    assert working.over(tuple(chosen)) == max(0, highest - sum(own))


def test_a_stage_counts_it_once_and_a_profile_without_it_counts_the_losss_gradient(tmp_path: Path) -> None:
    plain = gpt(2, 64, 32, 4)
    times = tuple(replace(times, working_bytes=(10_000_000,)) for times in plain.times)
    known = replace(plain, times=times)
    write_profile(tmp_path / "p.json", known)
    assert read_profile(tmp_path / "p.json") == known
    assert validator("profile").is_valid(json.loads((tmp_path / "p.json").read_text()))
    stages = [
        StrategyModel(profile, cluster(), 1, TrainingJob()).stage(range(1, 11), StageConfig(), (0,))
        for profile in (plain, known)
    ]
    assert stages[1].static_bytes - stages[0].static_bytes == 10_000_000
    assert stages[1].activation_bytes == stages[0].activation_bytes
