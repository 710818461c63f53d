"""A small model's profile: what the numbers must satisfy whatever the machine, and how a run resumes."""

import argparse
import json
import subprocess
import sys
import textwrap

import pytest
import torch

from costmodel.capture.batches import take
from costmodel.capture.capture import capture
from costmodel.capture.clock import HostClock, clock_for
from costmodel.capture.models import load_model
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.profile import read_profile
from costmodel.profiling.command import add_arguments, run
from costmodel.profiling.measure.backward_split import weight_shares
from costmodel.profiling.measure.memory import observe_memory, saved_per_sample
from costmodel.profiling.measure.timing import measure_mark_cost, time_in_context
from costmodel.profiling.measure.walk import Walk
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile
from planner.commands import main

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.left = nn.Linear(32, 64), nn.Linear(64, 64)
        self.right, self.head = nn.Linear(64, 64), nn.Linear(64, 8)
        self.trunk.requires_grad_(False)

    def forward(self, x, late):
        h = torch.relu(self.trunk(x))
        return self.head(torch.relu(self.left(h)) * self.right(h) + late)

def build(batch=8):
    return Net(), (torch.randn(batch, 32), torch.randn(batch, 64)), lambda out: out.square().mean()
"""


@pytest.fixture(autouse=True)
def own_model(tmp_path, monkeypatch):
    (tmp_path / "ownmodel.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("ownmodel", None)


def command(*flags):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(["ownmodel:build", "-o", "profile.json", "--no-links", "--repeats", "3", *flags]))


def test_the_command_writes_a_profile_that_reads_back_and_says_what_it_holds():
    answer = command("--microbatch-sizes", "1,2,4")
    found = read_profile("profile.json")
    assert answer["operators"] == len(found.graph.operators) == 9
    assert answer["parameters"] == sum(p.numel() for p in load_model("ownmodel:build").module.parameters())
    assert answer["edges"] == 9
    assert 0 < answer["coverage"] <= 1
    assert found.microbatch_sizes == (1, 2, 4)
    assert not list(__import__("pathlib").Path().glob("*.journal"))


def test_operators_and_accumulation_sum_to_the_whole_step():
    command("--microbatch-sizes", "4")
    found = read_profile("profile.json")
    total = sum(t.forward_ns[0] + t.backward_input_ns[0] + t.backward_weight_ns[0] for t in found.times)
    assert total + found.whole.accumulate_ns == pytest.approx(found.whole.step_ns[0], abs=2 * len(found.times))


def test_a_frozen_operator_has_no_backward_and_the_first_trainable_ones_have_only_weight_gradients():
    command("--microbatch-sizes", "2")
    found = read_profile("profile.json")
    backward = {
        o.module: (t.backward_input_ns[0] > 0, t.backward_weight_ns[0] > 0)
        for o, t in zip(found.graph.operators, found.times, strict=True)
        if o.kind == "linear"
    }
    assert backward == {"trunk": (False, False), "left": (False, True), "right": (False, True), "head": (True, True)}


def test_a_resumed_run_measures_nothing_that_the_journal_holds(tmp_path):
    options = Options("ownmodel:build", (1, 2), repeats=2, links=False)
    journal = tmp_path / "journal"
    first = profile(options, journal)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])
    again = profile(options, journal, resume=True)
    keys = [json.loads(line)[0] for line in journal.read_text().splitlines()[1:]]
    assert keys == [json.loads(line)[0] for line in lines[1:]]
    assert profile(options, journal, resume=True) == again
    assert again.graph == first.graph


def test_saved_bytes_agree_with_torchs_memory_tracker():
    from torch.distributed._tools.mem_tracker import MemTracker

    model = load_model("zoo:gpt:small", 4)
    walk = Walk(capture(model))
    kept = saved_per_sample(observe_memory(walk, take(model, 2)), 2, observe_memory(walk, model), 4)
    union = {s.storage: s.size_bytes * (1 if s.fixed else 4) for rows in kept.values() for s in rows}
    tracker = MemTracker()
    tracker.track_external(model.module)
    with tracker:
        loss, _ = model.evaluate(model.module(*model.args), model.targets)
        snapshot = tracker.get_tracker_snapshot("current")[torch.device("cpu")]
    activations = next(size for kind, size in snapshot.items() if "ACT" in str(kind))
    assert loss.requires_grad
    assert sum(union.values()) == pytest.approx(activations, rel=0.02)


def test_flop_of_a_linear_operator_is_two_per_multiply_add():
    model = load_model("ownmodel:build", 4)
    kept = observe_memory(Walk(capture(model)), model)
    assert kept.flop["linear"] == 2 * 4 * 32 * 64


def test_every_operator_is_seen_in_forward_and_every_trained_one_in_backward():
    model = load_model("ownmodel:build", 4)
    captured = capture(model)
    times = time_in_context(Walk(captured), model, HostClock())
    assert set(times.forward_ns) == set(captured.operators)
    added = {f"accumulate {layer}.{kind}" for layer in ("left", "right", "head") for kind in ("weight", "bias")}
    assert set(times.backward_ns) == set(captured.operators) - {"linear", "relu"} | added


class Ticking(HostClock):
    """A clock by which everything between two marks takes 1000 ns."""

    now = 0

    def mark(self):
        self.now += 1000
        return self.now


def test_what_the_engine_takes_before_and_after_a_backward_is_divided_over_its_nodes():
    model = load_model("ownmodel:build", 4)
    times = time_in_context(Walk(capture(model)), model, Ticking())
    marks = times.backward_marks
    share = 2000 / sum(marks.values())
    assert times.backward_ns == {name: int(count * (1000 + share)) for name, count in marks.items()}


def test_weight_shares_lie_between_none_and_all():
    shares = weight_shares(capture(load_model("ownmodel:build", 4)), 4, HostClock(), 3)
    assert shares["loss"] == shares["linear"] == 0
    assert shares["linear_1"] == 1
    assert 0 < shares["linear_3"] < 1


def test_a_mark_costs_less_than_a_hundred_microseconds():
    cost = measure_mark_cost(clock_for(torch.device("cpu")), torch.device("cpu"))
    assert abs(cost.forward_ns) < 100_000
    assert abs(cost.backward_ns) < 100_000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"microbatch_sizes": (0,)}, "whole numbers from 1"),
        ({"microbatch_sizes": (2, 2)}, "distinct"),
        ({"dtype": "int8"}, "allowed are float32"),
        ({"repeats": 0}, "at least 1"),
        ({"companions": -1}, "0 or more"),
        ({"dry_run": True, "reuse": "old.json"}, "measures nothing: without --reuse"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        Options("ownmodel:build", **flags)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("", UsageError, "has no function 'build'"),
        ("def build(): return 1", InvalidInput, "returned an object of type int; it must return"),
        (
            "def build(): return 1, 2, 3",
            InvalidInput,
            "the model is an object of type int; it must be a torch.nn.Module",
        ),
        ("def build(): return M(), 5, f", InvalidInput, "the inputs are an object of type int"),
        ("def build(): return M(), (x,), 5", InvalidInput, "the loss is an object of type int"),
        ("def build(): return M(), (x,), M()", InvalidInput, r"the loss has parameters of its own \(weight\)"),
        ("def build(): return {'model': M(), 'inputs': (x,)}", InvalidInput, "misses loss"),
        ("def build(): return {'model': M(), 'inputs': (x,), 'loss': f, 'z': 1}", InvalidInput, "unknown key z"),
        (
            "def build(): return {'model': M(), 'inputs': (x,), 'loss': f, 'split': {7: 0}}",
            InvalidInput,
            "names the input 7",
        ),
        ("def build(): return M(), (1,), f", InvalidInput, "no input is a tensor"),
        (
            "def build(): raise RuntimeError('no data')",
            InvalidInput,
            "fails with RuntimeError: no data at othermodel.py:6",
        ),
        ("import nowhere_to_be_found", InvalidInput, "needs 'nowhere_to_be_found', which is not installed"),
        ("x = = 1", InvalidInput, "cannot be imported: SyntaxError"),
        ("raise SystemExit(2)", InvalidInput, "cannot be imported: SystemExit: 2"),
        ("def build(): raise SystemExit(5)", InvalidInput, "fails with SystemExit: 5 at othermodel.py:6"),
        ("def build(): return torch.jit.script(M()), (x,), f", InvalidInput, "the model is TorchScript"),
    ],
)
def test_a_model_that_is_not_one_gets_one_clear_error(tmp_path, body, error, message):
    header = (
        "import torch\nclass M(torch.nn.Linear):\n    def __init__(self): super().__init__(2, 2)\n"
        "x = torch.ones(4, 2)\nf = lambda out: out.mean()\n"
    )
    (tmp_path / "othermodel.py").write_text(header + body + "\n")
    sys.modules.pop("othermodel", None)
    with pytest.raises(error, match=message) as caught:
        load_model("othermodel:build")
    assert "\n" not in str(caught.value)


def test_a_partial_of_a_function_is_a_model_too(tmp_path):
    body = (
        "import torch\nfrom functools import partial\ndef make(width, batch=4):\n"
        "    return torch.nn.Linear(width, 1), (torch.ones(batch, width),), lambda out: out.mean()\n"
        "build = partial(make, 3)\n"
    )
    (tmp_path / "othermodel.py").write_text(body)
    sys.modules.pop("othermodel", None)
    assert load_model("othermodel:build", 2).args[0].shape == (2, 3)


def test_an_output_that_is_a_folder_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        command("-o", str(tmp_path))
    assert not list(tmp_path.glob("*.journal"))


@pytest.mark.parametrize("limit", ["-1", "nan", "inf"])
def test_a_memory_limit_that_is_none_is_refused(limit):
    with pytest.raises(UsageError, match="GiB above 0 and up to"):
        command("--memory-limit", limit)


def test_what_a_model_prints_stays_out_of_the_json_answer(tmp_path, capsys):
    (tmp_path / "othermodel.py").write_text(
        "print('imported')\n" + OWN.replace("    return Net", "    print('built'); return Net")
    )
    sys.modules.pop("othermodel", None)
    assert main(["profile", "othermodel:build", "-o", "profile.json", "--dry-run", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["operators"] == 9
    assert "imported\nbuilt\n" in printed.err


def test_a_compiled_model_is_profiled_as_what_was_compiled(tmp_path):
    (tmp_path / "othermodel.py").write_text(
        "import torch\n"
        "def build(): return torch.compile(torch.nn.Linear(2, 2)), (torch.ones(4, 2),), lambda out: out.mean()\n"
    )
    sys.modules.pop("othermodel", None)
    assert list(dict(load_model("othermodel:build").module.named_parameters())) == ["weight", "bias"]


@pytest.mark.parametrize("spec", ["", "nothing", "no.such.module:build", "zoo:none", "zoo:mmt:huge", ":f", "ownmodel:"])
def test_a_spec_that_names_no_model_is_a_usage_error(spec):
    with pytest.raises(UsageError):
        load_model(spec)


def test_a_model_that_export_refuses_says_why(tmp_path):
    (tmp_path / "othermodel.py").write_text(
        textwrap.dedent("""
        import torch
        class Branching(torch.nn.Linear):
            def forward(self, x):
                return super().forward(x) if x.sum() > 0 else x
        def build(batch=4):
            return Branching(2, 2), (torch.ones(batch, 2),), lambda out: out.mean()
        """)
    )
    sys.modules.pop("othermodel", None)
    with pytest.raises(InvalidInput, match=r"torch.export cannot capture the model: .*torch.where") as caught:
        capture(load_model("othermodel:build"))
    assert "\n" not in str(caught.value)


def test_a_loss_that_is_no_scalar_is_refused(tmp_path):
    model = load_model("ownmodel:build")
    with pytest.raises(InvalidInput, match=r"a tensor of shape \[8, 8\]"):
        model.__class__(**{f: getattr(model, f) for f in model.__slots__} | {"loss": lambda out: out}).evaluate(
            torch.ones(8, 8), None
        )


def test_profiling_needs_torch_and_the_standard_library_alone(tmp_path):
    script = textwrap.dedent("""
        import sys
        from importlib.machinery import PathFinder
        blocked = {"numpy", "pandas", "ortools", "numba", "matplotlib", "rich", "transformers"}
        class Absent:  # as if they were not installed
            def find_spec(self, name, path=None, target=None):
                return None if name.split(".")[0] in blocked else PathFinder.find_spec(name, path, target)
        sys.meta_path[sys.meta_path.index(PathFinder)] = Absent()
        from costmodel.profiling.options import Options
        from costmodel.profiling.run import profile
        found = profile(Options("ownmodel:build", (1, 2), repeats=1, links=False))
        print(len(found.graph.operators))
    """)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, env=environment(tmp_path)
    )
    assert result.stdout.strip() == "9", result.stderr


def environment(folder):
    import os
    from pathlib import Path

    import costmodel

    root = Path(costmodel.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"}


def test_under_autocast_matrix_products_and_what_flows_from_them_are_in_the_smaller_dtype():
    plain, cast = (
        profile(Options("ownmodel:build", (2,), repeats=1, links=False, autocast=dtype)) for dtype in ("", "bfloat16")
    )
    assert cast.graph.fingerprint == plain.graph.fingerprint
    assert cast.graph.index == plain.graph.index
    half = [
        b.output_bytes[0] * 2 == a.output_bytes[0]
        for a, b in zip(plain.graph.operators, cast.graph.operators, strict=True)
    ]
    assert half[plain.graph.index["linear_1"]]
    assert cast.origin.autocast == "bfloat16"


def test_an_unknown_autocast_is_refused():
    with pytest.raises(UsageError, match="allowed are bfloat16 and float16"):
        Options("ownmodel:build", autocast="int8")
