"""What `penstock profile` tells of the machine that it measured on."""

from dataclasses import replace

import pytest

from costmodel.model.profile import Device
from costmodel.profiling.command import _tell_if_busy
from costmodel.zoo.generated import generate


@pytest.mark.parametrize(
    ("kind", "unscaled", "told"),
    [
        ("cuda", {"step_ns": [100, 200], "wall_ns": [300, 400], "kernel_ns": [60, 199]}, "kernels take 60%"),
        ("cuda", {"step_ns": [100, 200], "wall_ns": [300, 400], "kernel_ns": [95, 199]}, ""),
        ("cpu", {"step_ns": [100, 200], "wall_ns": [150, 200]}, "1.5 times its own CPU time"),
        ("cpu", {"step_ns": [100, 200], "wall_ns": [101, 201]}, ""),
    ],
)
def test_a_gpu_that_waits_for_its_host_and_a_busy_cpu_are_told(kind, unscaled, told, capsys):
    profile = replace(generate("random:12:0"), device=Device(kind, "any", 1), extra={"unscaled": unscaled})
    _tell_if_busy(profile)
    said = capsys.readouterr().err
    assert told in said
    assert bool(told) == bool(said)
