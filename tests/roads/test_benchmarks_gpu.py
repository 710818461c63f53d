"""Every question of the GPU benchmark runs on a CPU, so that a session with a GPU meets no bug of the code's own."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import analytic, memory, profiles
from benchmarks.gpu.__main__ import QUESTIONS, ask, main
from benchmarks.gpu.execution import branches_plan, one_stage
from benchmarks.gpu.setting import SUBJECTS, Setting
from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.model.profile import read_profile
from costmodel.profiling.measure.live import LiveBytes


def test_live_bytes_are_those_of_new_tensors_until_nothing_refers_to_them():
    there = torch.ones(1000)
    with LiveBytes() as live:
        first = there + 1
        second = first.view(10, 100) + 1
        seen = [(live.now, live.peak)]
        del first
        there.add_(second.view(-1))
        seen.append((live.now, live.peak))
    assert seen == [(8000, 8000), (4000, 8000)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the profile of the small Llama stack lies, measured once."""
    found = tmp_path_factory.mktemp("gpu")
    main(["--device", "cpu", "--models", "llama3", "--only", "profiles", "--repeats", "1", "-o", str(found)])
    return found


@pytest.fixture
def setting(folder):
    return Setting(torch.device("cpu"), folder, 1, ("llama3",))


def test_a_profile_is_written_compressed_with_how_long_it_took_and_on_what(folder):
    answer = json.loads((folder / "gpu-profiles.json").read_text())
    assert answer["command"].startswith("python -m benchmarks.gpu --device cpu --models llama3")
    assert {"date", "device", "torch", "cores", "load_average"} <= answer.keys()
    (row,) = answer["rows"]
    assert (row["sizes"], row["seconds"] > 0, answer["errors"]) == ([1, 2, 4], True, [])
    assert (folder / "profiles" / "llama3.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert read_profile(folder / "profiles" / "llama3.json.gz").dtype == "bfloat16"


@pytest.mark.parametrize("name", ["whole", "parts", "analytic"])
def test_a_question_answers_every_row_and_judges(name, setting):
    found = ask(name, QUESTIONS[name], setting)
    assert found["errors"] == []
    assert found["rows"]
    assert found["verdicts"]


def test_a_row_that_fails_is_reported_and_the_rest_goes_on(setting, monkeypatch):
    calls = iter([RuntimeError("out of memory"), {"model": "llama3", "sizes": [1, 2, 4]}])

    def measure(*_):
        found = next(calls)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(profiles, "_row", measure)
    monkeypatch.setattr(Setting, "chosen", lambda *_: [SUBJECTS["llama3"]] * 2)
    found = ask("profiles", profiles, setting)
    assert (found["errors"], len(found["rows"])) == (["RuntimeError: out of memory"], 1)


def test_the_described_stack_has_the_measured_ones_parameters_and_matrix_products(setting):
    measured = setting.profile(SUBJECTS["llama3"])
    described = analytic.described(measured, 1)
    assert sum(p.size_bytes for p in described.parameters) == sum(p.size_bytes for p in measured.graph.parameters)
    products = sum(o.flop for o in described.operators if o.work.kind == "matmul")
    assert products == sum(o.flop for o in measured.graph.operators if analytic.kind_of_work(o) == "matmul")


def test_an_order_alone_on_a_rank_has_all_its_computations(setting):
    rows = [measure() for measure in memory.rows(setting)]
    counts = {(row["case"], row["rank"]): row["actions"] for row in rows}
    assert counts == {(case, rank): 32 + 8 * (case != "1f1b") for case in memory.CASES for rank in (0, 3)}
    assert [row for row in rows if abs(row["point_%"]) > 5 or not row["below_upper"]] == []


def test_one_stage_steps_beside_a_plain_loop(setting):
    assert one_stage(setting, "llama3")["ratio"] > 0


def test_the_four_ranks_hold_a_branch_each_and_the_last_has_the_head():
    plan = branches_plan(capture(load_model("zoo:mmt:small", 2), 2))
    assert sorted((edge.source, edge.target) for edge in plan.edges) == [(0, 3), (1, 3), (2, 3)]
    assert plan.stages[3].operators[-1] == "loss"


def test_a_run_that_has_ended_early_goes_on_where_it_was_and_tries_again_what_failed(setting):
    tried, saved = [], []

    def rows(_):
        for number in range(4):

            def measure(number=number):
                tried.append(number)
                if number == 1 and tried.count(1) == 1:
                    raise RuntimeError("once")
                return {"number": number}

            yield measure

    question = SimpleNamespace(rows=rows, verdicts=lambda found: [("all", len(found) == 4)])
    assert ask("none", question, setting, saved.append, end=0.0)["complete"] is False
    assert (tried, saved) == ([], [])
    first = ask("some", question, setting, saved.append)
    assert (first["complete"], first["done"], first["errors"]) == (False, [0, 2, 3], ["RuntimeError: once"])
    again = ask("rest", question, setting, saved.append, before=saved[1])
    assert tried == [0, 1, 2, 3, 1, 3]
    assert (again["complete"], sorted(row["number"] for row in again["rows"])) == (True, [0, 1, 2, 3])


def test_the_same_command_goes_on_with_the_question_it_was_at_and_nothing_measured_takes_no_figures(
    tmp_path, monkeypatch
):
    tried = []

    def question(name):
        def measure(number):
            tried.append(f"{name} {number}")
            if len(tried) == 3:
                raise KeyboardInterrupt
            return {"number": number}

        return SimpleNamespace(rows=lambda _: (partial(measure, i) for i in range(2)), verdicts=lambda _: [])

    for name in ("profiles", "whole"):
        monkeypatch.setitem(QUESTIONS, name, question(name))
    words = ["--device", "cpu", "--only", "profiles,whole", "-o", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        main(words)
    main(words)
    assert tried == ["profiles 0", "profiles 1", "whole 0", "whole 0", "whole 1"]
    main([*words, "--minutes", "0"])
    assert len(json.loads((tmp_path / "gpu-profiles.json").read_text())["rows"]) == 2
    (tmp_path / "gpu-whole.json").unlink()
    main(words)
    assert tried[5:] == ["whole 0", "whole 1"]
