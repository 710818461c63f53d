"""The command under torchrun: exit codes, answers, and what happens when a rank dies or stops."""

import json
import os
import signal
from collections import Counter

import pytest
from torch.distributed.run import get_args_parser

from executor.__main__ import _parser
from planner.commands import main
from planner.plan import write_plan
from simulator.actions import RECEIVES, Kind
from simulator.timeline import read_timeline
from tests.properties.executor_promises import Ranks, kill_problems, penstock_exit, stop_problems
from tests.support.ranks.executor_jobs import captured, make_plan

MODEL = "tests.support.training_models:two_branch"


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    write_plan(path, make_plan("two_branch", num_stages=3, optimizer="adam"))
    return path


def test_a_checked_run_answers_in_json_and_every_rank_says_its_exit(plan_file, tmp_path):
    timeline, log = tmp_path / "timeline.json", tmp_path / "steps.jsonl"
    flags = ["--steps", 3, "--check", "--json", "--timeline", timeline, "--step-log", log]
    found = Ranks(tmp_path, 3, plan_file, "--model", MODEL, *flags).finish()
    assert [code for code, _, _ in found] == [0, 0, 0], found
    assert [penstock_exit(err) for _, _, err in found] == [[0], [0], [0]]
    answer = json.loads(found[0][1])
    assert answer["max_gradient_error"] == 0.0
    assert answer["loss_error"] <= 1e-6
    assert answer["steps"] == 3
    assert answer["step_time_ns"] > 0
    assert [out for _, out, _ in found[1:]] == ["", ""]
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(row["step"], row["measured_ns"]) for row in rows] == list(enumerate(answer["step_times_ns"]))
    assert {row["predicted_ns"] for row in rows} == {answer["predicted_step_time_ns"]}
    assert {row["slowest_rank"] for row in rows} <= {0, 1, 2}
    measured = read_timeline(timeline)
    kinds = [span.action.kind for span in measured.spans]
    assert kinds.count(Kind.F) == kinds.count(Kind.B) == 3 * 4
    assert kinds.count(Kind.OPT) == 3
    assert measured.step_time_ns <= 2 * answer["step_time_ns"] + 10**9


def test_torchrun_leaves_every_flag_to_the_executor():
    # its parser looks for abbreviations of its own flags even behind the name of the module
    flags = [flag for action in _parser()._actions for flag in action.option_strings if flag.startswith("--")]
    for flag in flags:
        given = ["-m", "executor", "plan.json", flag, "1"]
        assert get_args_parser().parse_args(given).training_script_args == ["plan.json", flag, "1"]


def test_an_emulated_run_holds_each_action_for_its_planned_time(tmp_path):
    plan, timeline = tmp_path / "plan.json", tmp_path / "timeline.json"
    write_plan(plan, make_plan("two_branch", num_stages=3, durations_ns=10_000_000, schedule="split"))
    flags = ["--emulate", "--steps", 2, "--timeline", timeline]
    found = Ranks(tmp_path, 3, plan, "--model", MODEL, *flags).finish()
    assert [code for code, _, _ in found] == [0, 0, 0], found
    computed = [span for row in read_timeline(timeline).compute_spans for span in row]
    assert len(computed) == 3 * 3 * 4
    assert all(span.end_ns - span.start_ns >= 10_000_000 for span in computed)


def test_compare_divides_the_difference_of_a_real_run_without_a_rest(plan_file, tmp_path, capsys):
    timeline = tmp_path / "timeline.json"
    found = Ranks(tmp_path, 3, plan_file, "--model", MODEL, "--steps", 2, "--timeline", timeline).finish()
    assert [code for code, _, _ in found] == [0, 0, 0], found
    receives = Counter(span.action for span in read_timeline(timeline).spans if span.action.kind in RECEIVES)
    assert set(receives.values()) == {2}  # the call that posts it, and the wait
    assert main(["compare", str(plan_file), "--measured", str(timeline), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["rows"][0]["measured"]
    difference_ns = measured["step_time_ns"] - measured["predicted_step_time_ns"]
    assert [sum(parts.values()) for parts in measured["ranks"]] == [difference_ns] * 3


def test_another_number_of_ranks_is_refused_before_any_communication(plan_file, tmp_path):
    ((code, out, err),) = Ranks(tmp_path, 1, plan_file, "--model", MODEL, "--json").finish()
    assert code == 6
    assert penstock_exit(err) == [6]
    assert json.loads(out)["exit"] == 6
    assert "the plan is for 3 ranks, 1 is running" in err
    assert "Traceback" not in err


def test_another_model_is_refused_before_any_communication(plan_file, tmp_path):
    found = Ranks(tmp_path, 3, plan_file, "--model", "tests.support.training_models:gated").finish()
    assert [code for code, _, _ in found] == [6, 6, 6]
    assert "fingerprint" in found[0][2]
    assert "Traceback" not in found[0][2]


def test_a_plan_for_gpus_is_refused_on_a_cpu(plan_file, tmp_path):
    text = plan_file.read_text().replace('"type": "cpu"', '"type": "cuda"')
    other = tmp_path / "gpu.json"
    other.write_text(text)
    found = Ranks(tmp_path, 3, other, "--model", MODEL).finish()
    assert [code for code, _, _ in found] == [6, 6, 6], found[0][2]


def test_a_missing_plan_and_a_wrong_flag_have_their_exit_codes(tmp_path):
    ((code, _, err),) = Ranks(tmp_path, 1, tmp_path / "none.json", "--model", MODEL).finish()
    assert (code, penstock_exit(err)) == (3, [3])
    ((code, _, err),) = Ranks(tmp_path, 1, "--steps", "many").finish()
    assert (code, penstock_exit(err)) == (2, [2])


@pytest.mark.parametrize("case", range(3))
def test_a_killed_rank_takes_the_others_down_by_name(plan_file, tmp_path, case):
    """Within five seconds: ``python -m benchmarks.reliability``."""
    assert kill_problems(plan_file, tmp_path, case) == []


def test_a_stopped_rank_is_lost_when_the_timeout_is_over(plan_file, tmp_path):
    assert stop_problems(plan_file, tmp_path, 1) == []


def test_an_interrupted_rank_says_130(plan_file, tmp_path):
    ranks = Ranks(tmp_path, 3, plan_file, "--model", MODEL, "--steps", 1000000)
    ranks.wait_for("step 2:")
    for process in ranks.processes:
        os.kill(process.pid, signal.SIGINT)
    assert {code for code, _, _ in ranks.finish(timeout_s=10)} <= {130, 8}


def test_the_check_fails_with_7_when_a_gradient_is_wrong(tmp_path):
    # The model's function makes other parameters on every call, so the reference is another model.
    path = tmp_path / "plan.json"
    write_plan(path, make_plan("unseeded", num_stages=2))
    assert captured("unseeded")
    found = Ranks(tmp_path, 2, path, "--model", "tests.support.training_models:unseeded", "--check", "--json").finish()
    assert [code for code, _, _ in found] == [7, 7], found
    assert json.loads(found[0][1])["max_gradient_error"] > 1e-5
