"""Generated profiles: the same for the same seed, of the size and shape they promise, without torch."""

import subprocess
import sys

import pytest

from costmodel.errors import UsageError
from costmodel.model.profile import read_profile, write_profile
from costmodel.zoo.generated import generate
from costmodel.zoo.profile_builder import SIZES


@pytest.mark.parametrize("spec", ["random:2:0", "random:50:1", "random:2000:7"])
def test_a_random_graph_has_the_number_of_operators_that_was_asked_for(spec):
    graph = generate(spec).graph
    assert len(graph.operators) == int(spec.split(":")[1])
    assert graph.operators[-1].name == "loss"


@pytest.mark.parametrize("spec", ["nasnet", "random:300:4"])
def test_every_operator_but_the_loss_is_read(spec):
    graph = generate(spec).graph
    assert all(graph.successors[:-1])
    assert sum(not row for row in graph.predecessors) == 1


def test_the_same_seed_gives_the_same_profile_and_another_seed_another():
    assert generate("random:80:3") == generate("random:80:3")
    assert generate("random:80:3").graph.fingerprint != generate("random:80:4").graph.fingerprint


def test_a_random_graph_has_branches_joins_and_a_bounded_width():
    graph = generate("random:400:0").graph
    assert sum(len(row) > 1 for row in graph.predecessors) > 40
    assert sum(len(row) > 1 for row in graph.successors) > 40
    assert max(map(len, graph.predecessors)) < 16


def test_nasnet_has_22_cells_and_some_1250_operators():
    graph = generate("nasnet").graph
    assert len({o.module for o in graph.operators if o.module.startswith("cells.")}) == 22
    assert 1200 <= len(graph.operators) <= 1300


def test_a_cell_of_nasnet_reads_the_two_cells_before_it():
    graph = generate("nasnet").graph
    cell_of = [o.module for o in graph.operators]
    reads = {cell_of[p] for i, row in enumerate(graph.predecessors) for p in row if cell_of[i] == "cells.9"}
    assert reads == {"cells.7", "cells.8", "cells.9"}


def test_times_rise_with_the_micro_batch_and_sum_to_the_step():
    profile = generate("random:60:2")
    assert all(t.forward_ns == tuple(sorted(t.forward_ns)) for t in profile.times)
    last = len(SIZES) - 1
    total = sum(t.forward_ns[last] + t.backward_input_ns[last] + t.backward_weight_ns[last] for t in profile.times)
    assert total == profile.whole.step_ns[last]


def test_a_generated_profile_reads_back(tmp_path):
    profile = generate("random:40:9")
    write_profile(tmp_path / "profile.json", profile)
    assert read_profile(tmp_path / "profile.json") == profile


@pytest.mark.parametrize("spec", ["random", "random:1:0", "random:5", "random:x:0", "random:5:-1", "nasnet:2", "other"])
def test_a_spec_that_names_no_graph_says_what_is_allowed(spec):
    with pytest.raises(UsageError, match="allowed are nasnet and random:N:SEED"):
        generate(spec)


def test_generating_needs_no_torch_and_no_numpy():
    script = (
        "import sys; from costmodel.zoo.generated import nasnet; nasnet(); print({'torch', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "set()"
