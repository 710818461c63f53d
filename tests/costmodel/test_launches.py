"""Profiles whose host and device are told apart: their file, and what divided operators take."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import InvalidInput
from costmodel.model.launches import Launches, steady
from costmodel.model.profile import Device, Profile, read_profile, write_profile
from costmodel.roofline import scale_profile
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies import TrainingJob
from costmodel.stages.strategies.division import Degrees
from costmodel.stages.strategies.efficiency import Efficiency
from tests.support.gpt_graph import gpt
from tests.support.schema_corpus import validator

HOST_NS = 30_000


def with_launches(device_ns: int) -> Profile:
    """Every operator one kernel forward and two backward, each of that many ns; as the profiler would write it."""
    profile = gpt(1, 64, 32, 4)
    n = len(profile.times)
    forward, backward = [(HOST_NS, device_ns, 1)] * n, [(2 * HOST_NS, 2 * device_ns, 2)] * n
    moved = steady([*forward, *backward])
    launches = Launches((device_ns,), (2 * device_ns,), (HOST_NS,), (2 * HOST_NS,), (1,), (2,))
    times = [
        replace(
            old,
            forward_ns=(round(moved[i]),),
            backward_input_ns=(round(moved[-1 - i] / 2),),
            backward_weight_ns=(round(moved[-1 - i] / 2),),
            launches=launches,
        )
        for i, old in enumerate(profile.times)
    ]
    return replace(profile, times=tuple(times))


def all_of(profile: Profile, degrees: Degrees) -> int:
    efficiency = Efficiency(MeasuredOperators(profile, 1), TrainingJob())
    return sum(sum(efficiency.times(i, degrees)) for i in range(len(profile.times)))


def test_a_profile_with_launches_reads_back_and_keeps_to_the_schema(tmp_path: Path) -> None:
    profile = with_launches(4_000)
    write_profile(tmp_path / "p.json", profile)
    assert read_profile(tmp_path / "p.json") == profile
    document = json.loads((tmp_path / "p.json").read_text())
    assert validator("profile").is_valid(document)
    document["operators"][0]["launches"].pop("kernels_forward")
    assert not validator("profile").is_valid(document)
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match="kernels_forward"):
        read_profile(tmp_path / "p.json")


def test_launches_need_one_entry_a_size_as_times_do() -> None:
    profile = with_launches(4_000)
    first = profile.times[0]
    assert first.launches is not None
    short = replace(first, launches=replace(first.launches, host_forward_ns=()))
    with pytest.raises(InvalidInput, match="entries in each list"):
        replace(profile, times=(short, *profile.times[1:]))


def test_undivided_operators_take_what_the_profile_says() -> None:
    profile = with_launches(4_000)
    efficiency = Efficiency(MeasuredOperators(profile, 1), TrainingJob())
    for i, times in enumerate(profile.times):
        assert efficiency.times(i, Degrees()) == (
            times.forward_ns[0],
            times.backward_input_ns[0],
            times.backward_weight_ns[0],
        )


def test_dividing_short_kernels_saves_nothing_and_dividing_long_ones_their_time_down_to_the_hosts() -> None:
    bound = with_launches(4_000)
    assert all_of(bound, Degrees(4)) == pytest.approx(all_of(bound, Degrees()), rel=0.01)
    long = with_launches(10_000_000)
    without = replace(long, times=tuple(replace(times, launches=None) for times in long.times))
    assert all_of(long, Degrees(4)) == pytest.approx(all_of(without, Degrees(4)), rel=0.01)
    middle = with_launches(60_000)
    num_operators = len(middle.times)
    assert all_of(middle, Degrees(4)) >= 3 * HOST_NS * num_operators * 0.99
    assert all_of(middle, Degrees(4)) < all_of(middle, Degrees())


@pytest.mark.parametrize("device_ns", [4_000, 400_000])
def test_on_another_device_kernels_take_their_time_and_the_host_what_it_took(device_ns) -> None:
    profile = replace(with_launches(device_ns), device=Device("cuda", "A100", 0, "a100-sxm-80"))
    bare = replace(profile, times=tuple(replace(times, launches=None) for times in profile.times))
    scaled, kernels = (scale_profile(one, "v100-sxm2-32") for one in (profile, bare))
    for place in range(len(scaled.microbatch_sizes)):
        whole, alone, before = (
            sum(t.forward_ns[i] + t.backward_input_ns[i] + t.backward_weight_ns[i] for t in one.times)
            for one, i in ((scaled, place), (kernels, place), (profile, 0))
        )
        assert alone != before
        assert whole == pytest.approx(before if device_ns < HOST_NS else alone, rel=1e-4)
        ratio = kernels.times[0].forward_ns[place] / profile.times[0].forward_ns[0]
        assert scaled.times[0].launches is not None
        assert scaled.times[0].launches.device_forward_ns[place] == round(device_ns * ratio)
        assert scaled.times[0].launches.host_forward_ns[place] == HOST_NS
