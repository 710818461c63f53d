"""Lightning runs a plan's rung on two ranks by configuration alone: losses are those of one process."""

from pathlib import Path

import pytest

from tests.support.trainers.started import ran

pytest.importorskip("lightning", reason="Lightning is not installed: `make trainers` runs this")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def alone(plans: Path) -> list[float]:
    losses: list[float] = ran("lightning_job.py", 0, 1, plans, ranks=1)["losses"]
    return losses


@pytest.mark.parametrize(
    ("zero", "kind", "parameters"),
    [
        (0, "DDPStrategy", ["Parameter"]),
        (2, "ModelParallelStrategy", ["DTensor"]),
        (3, "ModelParallelStrategy", ["DTensor"]),
    ],
)
def test_losses_under_a_plan_are_those_of_one_process(
    plans: Path, alone: list[float], zero: int, kind: str, parameters: list[str]
) -> None:
    found = ran("lightning_job.py", zero, 2, plans, ranks=2)
    assert (found["type"], found["parameters"]) == (kind, parameters)
    assert found["losses"] == pytest.approx(alone, rel=1e-5)
