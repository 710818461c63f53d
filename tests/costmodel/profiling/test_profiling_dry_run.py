"""A dry run: the same graph, operations and bytes as a measured profile, on `meta`, without times."""

import pytest
import torch

from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.errors import UsageError
from costmodel.profiling.dry import dry_profile
from costmodel.profiling.measure.memory import counted_graph
from costmodel.profiling.options import Options


@pytest.fixture(scope="module")
def dry():
    torch.set_num_threads(1)
    return dry_profile(Options("zoo:vit:small", (2, 4), device="cuda", dry_run=True))


@pytest.fixture(scope="module")
def seen():
    return counted_graph(capture(load_model("zoo:vit:small", 4)), (2, 4))


def test_a_dry_run_has_the_graph_of_a_measured_profile(dry, seen):
    assert dry.graph.fingerprint == seen.fingerprint
    assert [o.output_bytes for o in dry.graph.operators] == [o.output_bytes for o in seen.operators]


def test_a_dry_run_counts_the_same_operations(dry, seen):
    assert [o.flop for o in dry.graph.operators] == [o.flop for o in seen.operators]


def test_a_dry_run_keeps_what_fused_attention_keeps(dry, seen):
    def union(graph):
        return sum({s.storage: s.size_bytes for o in graph.operators for s in o.saved}.values())

    assert union(dry.graph) == pytest.approx(union(seen), rel=0.02)


def test_a_dry_run_has_no_times_and_says_so(dry):
    assert dry.extra == {"dry_run": True}
    assert dry.whole.step_ns == (0, 0)


def test_a_gpu_is_needed_to_measure_on_one_but_not_for_a_dry_run():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="no CUDA device"):
        Options("zoo:vit:small", device="cuda")
