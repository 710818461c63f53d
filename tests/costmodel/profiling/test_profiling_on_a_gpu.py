"""What one H100 taught: a size that does not fit costs that size alone; kernels' records are read as they are written.

``tests/data/h100_uno_trace.json.gz`` is what torch 2.11's profiler wrote of one step of ``zoo:uno`` at a micro-batch of
512 on an H100, with the profiler's notes around each operator.
"""

import gc
import gzip
import json
import re
import subprocess
import sys
import textwrap
from bisect import bisect_right
from pathlib import Path

import pytest
import torch
from torch import nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.capture.clock import HostClock
from costmodel.capture.heap import drop_unreachable
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.profile import read_profile
from costmodel.profiling import run, session
from costmodel.profiling.device import _float32_precision
from costmodel.profiling.measure.marks import PREFIX
from costmodel.profiling.measure.records import CALL, KERNELS, LAUNCHES, NOTE, doubts, sum_kernels
from costmodel.profiling.measure.timing import time_in_context
from costmodel.profiling.measure.walk import Walk
from costmodel.profiling.options import Options
from tests.support.repository import DATA

TRACE = DATA / "h100_uno_trace.json.gz"
PROFILES = sorted((Path(run.__file__).parents[1] / "zoo" / "profiles").rglob("*.json.gz"))
OPTIONS = Options("tests.support.training_models:two_branch", (1, 2, 4), repeats=2, links=False)


@pytest.fixture(scope="module")
def events():
    return json.loads(gzip.decompress(TRACE.read_bytes()))


def runs_out(name, above, monkeypatch):
    """Let one of the profiler's measurements run out of memory at sizes above one."""
    plain = getattr(session, name)

    def measure(*words):
        sizes = [value.batch for value in words if isinstance(value, TrainingModel)]
        sizes += [value for value in words if type(value) is int]
        if sizes[0] > above:
            raise torch.OutOfMemoryError("as on a device")
        return plain(*words)

    monkeypatch.setattr(session, name, measure)


@pytest.mark.parametrize("name", ["weight_shares", "working_bytes", "peak_memory_bytes"])
def test_a_size_that_runs_out_of_memory_in_any_measurement_is_left_out_and_told(name, monkeypatch):
    runs_out(name, 2, monkeypatch)
    said = []
    found = run.profile(OPTIONS, say=said.append)
    assert found.microbatch_sizes == (1, 2)
    assert all(len(times.forward_ns) == len(times.working_bytes) == 2 for times in found.times)
    assert [text for text in said if "micro-batch size 4 does not fit" in text]


def test_where_no_size_fits_the_error_names_the_way_out(monkeypatch):
    runs_out("working_bytes", 0, monkeypatch)
    with pytest.raises(InvalidInput, match=r"a micro-batch of 1 does not fit .* smaller --microbatch-sizes"):
        run.profile(OPTIONS)


def test_a_step_that_runs_out_of_memory_leaves_none_of_its_tensors():
    width = 1237

    def fails(out):
        if failing:
            raise torch.OutOfMemoryError("as on a device")
        return out.square().mean()

    failing = False
    module = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
    model = TrainingModel("own", module, (torch.randn(3, 4),), {}, None, False, fails, {}, 3)
    walk, failing = Walk(capture(model)), True
    with pytest.raises(torch.OutOfMemoryError):
        time_in_context(walk, model, HostClock())
    drop_unreachable(torch.device("cpu"))
    assert not [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and one.shape == (3, width)]


def test_every_kernel_of_an_h100_belongs_to_a_note(events):
    notes = sum(event.get("cat") == NOTE and event["name"].startswith(PREFIX) for event in events)
    found = sum_kernels(events, PREFIX, notes)
    kernels = [event for event in events if event.get("cat") in KERNELS]
    assert found.unattributed_ns == 0
    assert found.kernels_before[-1] == len(kernels)
    assert found.ns_before[-1] == pytest.approx(1000 * sum(event["dur"] for event in kernels))


def test_without_launches_the_operators_of_torch_tell_nearly_the_same(events):
    """torch's own link names the operator that called; a memset of a library's is called by none."""
    notes = sum(event.get("cat") == NOTE and event["name"].startswith(PREFIX) for event in events)
    whole = sum_kernels(events, PREFIX, notes)
    linked = sum_kernels([event for event in events if event.get("cat") not in LAUNCHES], PREFIX, notes)
    alone = sum_kernels([e for e in events if e.get("cat") not in {*LAUNCHES, CALL}], PREFIX, notes)
    assert linked.unattributed_ns <= 0.001 * whole.ns_before[-1]
    apart = [abs(a - b) for a, b in zip(whole.ns_before, linked.ns_before, strict=True)]
    assert max(apart) <= 0.001 * whole.ns_before[-1]
    assert alone.unattributed_ns == pytest.approx(whole.ns_before[-1], rel=1e-6)


def test_notes_by_launch_agree_with_torchs_own_links_kernel_by_kernel(events):
    times = sorted(e["ts"] for e in events if e.get("cat") == NOTE and e["name"].startswith(PREFIX))
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in LAUNCHES}
    called = {e["args"]["External id"]: e["ts"] for e in events if e.get("cat") == CALL}
    kernels = [event["args"] for event in events if event.get("cat") == "kernel"]
    pairs = [(launched[ids["correlation"]], called[ids["External id"]]) for ids in kernels]
    assert len(pairs) > 250
    assert all(bisect_right(times, by_launch) == bisect_right(times, by_call) for by_launch, by_call in pairs)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ((1000, 0, 1000, 1980, 1980), []),
        ((1000, 19, 1010, 1980, 1950), []),
        ((1000, 30, 1000, 0, 0), ["3.0% of the time in kernels could be given to no operator"]),
        ((1050, 0, 1000, 0, 0), [r"kernels took \+5.0% in the steps told apart"]),
        ((1000, 0, 0, 1980, 1500), ["from 1980 to 1500 MHz"]),
    ],
)
def test_what_makes_a_devices_times_doubtful_is_told_above_two_percent(measured, said):
    found = doubts(*measured)
    assert len(found) == len(said)
    for text, pattern in zip(found, said, strict=True):
        assert re.search(pattern, text)


def test_settings_are_read_after_a_model_has_set_tf32_by_the_current_names():
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, convolution.fp32_precision
    try:
        matmul.fp32_precision, convolution.fp32_precision = "tf32", "ieee"
        assert _float32_precision() == {"matmul": "tf32", "convolution": "ieee"}
    finally:
        matmul.fp32_precision, convolution.fp32_precision = before


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_what_an_h100_measured_is_a_profile_that_covers_its_steps(path):
    found = read_profile(path)
    assert found.device.catalogue == "h100-sxm-80"
    assert len(found.microbatch_sizes) >= 2
    assert min(found.extra["unscaled"]["coverage"]) > 0.9


def test_plan_names_the_library_that_a_gpu_box_lacks(tmp_path):
    package = "numpy"
    script = textwrap.dedent(f"""
        import sys
        from importlib.machinery import PathFinder
        class Absent:  # as if it were not installed
            find_distributions = staticmethod(PathFinder.find_distributions)
            def find_spec(self, name, path=None, target=None):
                return None if name.split(".")[0] == {package!r} else PathFinder.find_spec(name, path, target)
        sys.meta_path[sys.meta_path.index(PathFinder)] = Absent()
        from planner.commands import main
        flags = ["--devices", "2", "--batch", "1024", "-o", {str(tmp_path / "plan.json")!r}]
        raise SystemExit(main(["plan", {str(PROFILES[0])!r}, *flags]))
    """)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.returncode == UsageError.exit_code
    assert f"{package} is not installed" in done.stderr
    assert f"pip install {package}" in done.stderr
    assert "bug" not in done.stderr
