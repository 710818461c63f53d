"""Profilings that are cut off at random moments; ``python -m benchmarks.reliability --full`` tries thirty."""

from tests.properties.profiler_promises import interruption_failures


def test_interrupted_and_resumed_a_profiling_knows_the_same_and_measures_nothing_twice() -> None:
    assert interruption_failures(1) == []
