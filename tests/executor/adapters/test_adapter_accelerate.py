"""accelerate runs a plan's rung by configuration alone, in shard groups too: losses are those of one process."""

from pathlib import Path

import pytest

from tests.support.trainers.started import ran

pytest.importorskip("accelerate", reason="accelerate is not installed: `make trainers` runs this")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def alone(plans: Path) -> list[float]:
    losses: list[float] = ran("accelerate_job.py", 0, 0, 1, plans, ranks=1)["losses"]
    return losses


@pytest.mark.parametrize(
    ("zero", "group", "ranks", "kind", "placed"),
    [
        (0, 0, 2, "MULTI_CPU", "whole"),
        (2, 0, 2, "FSDP", "(Shard(dim=0),)"),
        (3, 0, 2, "FSDP", "(Shard(dim=0),)"),
        (3, 2, 4, "FSDP", "(Replicate(), Shard(dim=0))"),
    ],
)
def test_losses_under_a_plan_are_those_of_one_process(
    plans: Path, alone: list[float], zero: int, group: int, ranks: int, kind: str, placed: str
) -> None:
    found = ran("accelerate_job.py", zero, group, ranks, plans, ranks=ranks)
    assert (found["type"], found["placed"]) == (kind, [placed])
    assert found["losses"] == pytest.approx(alone, rel=1e-5)
