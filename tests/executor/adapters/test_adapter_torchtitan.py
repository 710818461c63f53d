"""torchtitan's own training loop runs a plan of two uneven stages: losses are those of its run with one."""

from pathlib import Path

import pytest

from tests.support.trainers.started import ran

pytest.importorskip("torchtitan", reason="torchtitan is not installed: `make trainers` runs this")


def test_losses_under_a_plan_of_uneven_stages_are_those_of_one_stage(tmp_path: Path) -> None:
    alone = ran("torchtitan_job.py", "alone", tmp_path, ranks=1)
    found = ran("torchtitan_job.py", "planned", tmp_path, ranks=2)
    assert found["held"] == [["layers.4", "layers.5", "lm_head", "norm"]]
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5)
