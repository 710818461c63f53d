"""DeepSpeed's own engine runs a plan of two uneven stages: losses are those of one process."""

from pathlib import Path

import pytest

from tests.support.trainers.started import ran

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: `make trainers` runs this")


def test_losses_under_a_plan_of_uneven_stages_are_those_of_one_process(tmp_path: Path) -> None:
    found = ran("deepspeed_job.py", tmp_path, ranks=2)
    assert found["bounds"] == [0, 5, 8]
    assert found["losses"] == pytest.approx(found["alone"], rel=1e-5)
