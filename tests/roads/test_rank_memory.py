"""What ranks hold of a model four times their size (`python -m benchmarks.rank_memory` takes a larger one)."""

import sys

import pytest

from benchmarks.rank_memory import measure, ratios

ON_LINUX = sys.platform.startswith("linux")


@pytest.mark.skipif(not ON_LINUX, reason="what a process holds and has read is told by /proc, which only Linux has")
def test_a_rank_reads_its_stages_alone_once_and_holds_no_more_while_it_does() -> None:
    found = ratios(measure(2048, 8, 0))
    assert found["loading"] <= 1.15
    assert found["read"] <= 1.05
