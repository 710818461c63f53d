"""Two engines that share no code see the same; `python -m benchmarks.reliability --full` tries 50,000 cases."""

from tests.properties.engines_agree import disagreements


def test_the_engines_agree_to_the_nanosecond_and_byte_on_random_schedules_in_all_modes() -> None:
    assert disagreements(500, first_seed=1_000_000) == []
