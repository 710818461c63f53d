"""Models measured in pieces: block by block under a memory limit, and only what is new with an old profile."""

import argparse

import pytest
import torch

from costmodel.capture.capture import capture
from costmodel.capture.clock import HostClock
from costmodel.capture.parts import extract
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.graph import LOSS
from costmodel.model.profile import read_profile
from costmodel.profiling.command import add_arguments, run
from costmodel.profiling.measure.blocks import make_runnable, signatures, split_into_blocks
from costmodel.profiling.measure.memory import counted_graph
from costmodel.profiling.measure.timing import time_whole
from costmodel.zoo import gpt

OWN = """
from costmodel.zoo import gpt, llama

def build(batch=2):
    return gpt.build(batch, vocabulary=64, hidden=32, num_layers=3, num_heads=2, sequence=16)

def wider_head(batch=2):
    return gpt.build(batch, vocabulary=96, hidden=32, num_layers=4, num_heads=2, sequence=16)

def rotary(batch=2):
    return llama.build(batch, 64, 32, 48, num_layers=2, num_heads=2, num_kv_heads=1, sequence=8)
"""


@pytest.fixture(autouse=True)
def own_models(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    (tmp_path / "blockmodels.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A whole profile of the model, measured once."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "blockmodels.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        command("blockmodels:build", str(folder / "old.json"))
    return str(folder / "old.json")


@pytest.fixture(scope="module")
def small_gpt():
    model, inputs, targets, loss = gpt.build(2, vocabulary=64, hidden=32, num_layers=3, num_heads=2, sequence=16)
    from costmodel.capture.batches import TrainingModel

    return capture(TrainingModel("gpt", model.train(), inputs, {}, targets, True, loss, {}, 2))


def command(model, output, *flags):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = [model, "-o", output, "--no-links", "--repeats", "1", "--microbatch-sizes", "1,2", "--companions", "0"]
    return run(parser.parse_args([*words, *flags]))


def test_equal_layers_are_equal_blocks_and_every_operator_is_in_one_block(small_gpt):
    alike = signatures(small_gpt, 2)
    graph = counted_graph(small_gpt, (2,))
    blocks = split_into_blocks(graph, alike, alike, 2)
    assert sorted(name for block in blocks for name in block.operators) == sorted(small_gpt.operators)
    layers = [block for block in blocks if len(block.operators) > 5]
    assert (len(layers), len({block.equivalence_key for block in layers})) == (3, 1)


def test_blocks_that_do_not_fit_are_divided_and_an_operator_that_does_not_is_named(small_gpt):
    alike = signatures(small_gpt, 2)
    graph = counted_graph(small_gpt, (2,))
    whole = split_into_blocks(graph, alike, alike, 2)
    finer = split_into_blocks(graph, alike, alike, 2, 60_000)
    assert len(finer) > len(whole)
    with pytest.raises(InvalidInput, match="operator 'embedding' alone needs"):
        split_into_blocks(graph, alike, alike, 2, 1000)


def test_a_block_runs_by_itself_and_every_parameter_of_it_gets_a_gradient(small_gpt):
    alike = signatures(small_gpt, 2)
    for block in split_into_blocks(counted_graph(small_gpt, (2,)), alike, alike, 2):
        running = make_runnable(small_gpt, block, 2, torch.device("cpu"))
        assert running.operators == (*(name for name in block.operators if name != LOSS), LOSS)
        time_whole(extract(running, running.operators), running.model, HostClock())
        assert all(p.grad is not None for p in running.model.module.parameters())


LEFT_OUT = "up to a fifth more memory"
"""What is said of a profile that leaves out what operators have alive."""


def test_under_a_memory_limit_each_distinct_block_is_measured_once_and_what_is_left_out_is_said(capsys):
    answer = command("blockmodels:build", "profile.json", "--memory-limit", "0.0003")
    found = read_profile("profile.json")
    counts = found.extra["in_blocks"]
    assert counts["distinct"] < counts["blocks"]
    assert answer["coverage"] > 0
    assert all(t.forward_ns[0] > 0 for t in found.times if t is not found.times[-1])
    layers = [
        [found.times_of[o.name] for o in found.graph.operators if o.module.startswith(f"layers.{i}.")] for i in range(3)
    ]
    assert layers[0] == layers[1] == layers[2]
    assert not all(times.working_bytes for times in found.times)
    assert LEFT_OUT in capsys.readouterr().err


def test_position_tables_of_a_model_captured_on_meta_are_made_where_it_is_measured():
    command("blockmodels:rotary", "profile.json", "--memory-limit", "0.0003")
    assert read_profile("profile.json").extra["in_blocks"]["blocks"] > 1


def test_a_model_within_the_limit_is_measured_whole():
    command("blockmodels:build", "profile.json", "--memory-limit", "1")
    assert "in_blocks" not in read_profile("profile.json").extra


def test_only_operators_of_new_kinds_shapes_or_dtypes_are_measured_again(old, capsys):
    command("blockmodels:wider_head", "new.json", "--reuse", old)
    old, new = read_profile(old), read_profile("new.json")
    measured = {
        o.name for o in new.graph.operators if new.extra["signatures"][o.name] not in old.extra["signatures"].values()
    }
    assert new.extra["reused"] == {"operators": len(new.times) - len(measured), "measured": len(measured)}
    assert {"embedding", "linear_16", "loss"} == measured
    assert new.times_of["gelu"] in old.times
    assert not all(times.working_bytes for times in new.times)
    assert LEFT_OUT in capsys.readouterr().err


def test_a_profile_that_knows_what_all_operators_have_alive_says_nothing_of_it(old, capsys):
    command("blockmodels:build", "new.json", "--reuse", old)
    assert all(times.working_bytes for times in read_profile("new.json").times)
    assert LEFT_OUT not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--dtype", "float64"), "measured on .* with float32, this is .* with float64"),
        (("--microbatch-sizes", "4"), r"it has the micro-batch sizes \[1, 2\], not \[4\]"),
        (("--memory-limit", "1"), "one at a time"),
    ],
)
def test_a_profile_of_other_circumstances_is_not_reused(old, flags, message):
    with pytest.raises(UsageError, match=message):
        command("blockmodels:build", "new.json", "--reuse", old, *flags)


def test_linear_layers_and_attention_are_measured_at_their_shard_shapes():
    command("blockmodels:build", "profile.json", "--tensor", "1,2,3")
    found = read_profile("profile.json")
    shards = found.shards
    kinds = {o.name: o.kind for o in found.graph.operators}
    assert {kinds[name] for name in shards} == {"linear", "scaled_dot_product_attention"}
    for name, cuts in shards.items():
        attention = kinds[name] != "linear"
        if attention:
            assert set(cuts) == {"2/heads"}
        else:
            assert set(cuts) >= {"2/column", "2/row"}
        assert all(len(row) == 2 and row[0] > 0 for rows in cuts.values() for row in rows[:1])
    qkv = next(o.name for o in found.graph.operators if o.module.endswith("qkv"))
    assert "3/column" in shards[qkv]
    assert "3/row" not in shards[qkv]


@pytest.mark.parametrize("flags", [("--tensor", "0"), ("--tensor", "2,x"), ("--tensor", "2", "--memory-limit", "1")])
def test_shards_that_cannot_be_meant_are_refused(flags):
    with pytest.raises(UsageError, match="--tensor"):
        command("blockmodels:build", "profile.json", *flags)
