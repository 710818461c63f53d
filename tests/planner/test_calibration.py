"""Constants that measured jobs move: what they identify, what stays, and what a calibration file may hold."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.calibration import Calibration, around, published, read_calibration, to_toml
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.launches import paced_ns, steady
from costmodel.stages.strategies import TrainingJob
from costmodel.stages.strategies.trainers import habits_of, trainers
from planner.candidate.make import at_peak_ns, expected_ns
from planner.commands import main
from planner.measured.predicted import Predictor
from planner.measured.runs import read_runs
from planner.plan import read_plan
from planner.question.problem import Problem
from tests.support.described_models import described

HEADER = "model,device,devices,batch,microbatch-size,sequence,tensor,data,stages,trainer,step_time_ms\n"
FIRST = ("--time-limit", "0")
"""The first plan: what a calibration does to a price is asked, not what a search finds."""
LAYOUTS = ((8, 1, 1), (4, 2, 1), (2, 4, 1), (2, 2, 2), (1, 8, 1))


def runs(path: Path, times: list[float], trainer: str = "megatron") -> Path:
    rows = [
        f"config.json,h100-sxm-80,8,32,1,4096,{t},{d},{p},{trainer},{time}"
        for (t, d, p), time in zip(LAYOUTS, times, strict=True)
    ]
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shape = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 4,
             "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
             "tie_word_embeddings": False}  # fmt: skip
    Path("config.json").write_text(json.dumps(shape))
    return tmp_path


def told(tmp_path: Path, calibration: Calibration) -> list[float]:
    """Steps that a calibration promises, ms."""
    jobs = read_runs(runs(tmp_path / "asked.csv", [1.0] * len(LAYOUTS)))
    return [one.step_ns / 1e6 for one in Predictor(calibration).all(jobs)]


def test_a_fit_finds_a_slower_device_and_halves_the_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = told(model, published().with_values({"matmul.h100-sxm-80.bf16": 1.6}))
    assert main(["fit", str(runs(model / "runs.csv", times)), "-o", "found.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["error_after_percent"] < found["error_before_percent"] / 2
    known = read_calibration("found.toml")
    slower = known.factor("matmul", "h100-sxm-80", "bf16") * known.efficiency("matmul", "megatron")
    was = published().factor("matmul", "h100-sxm-80", "bf16") * published().efficiency("matmul", "megatron")
    moved = found["moved"]["matmul.h100-sxm-80.bf16"]
    assert slower / was == pytest.approx(1.6 / published().values["matmul.h100-sxm-80.bf16"], rel=0.1)
    assert moved["after"] > moved["before"]
    assert known.errors["matmul.h100-sxm-80.bf16"] == pytest.approx(found["leave_one_family_out_percent"] / 100, 1e-3)
    assert known.trainer == "megatron"


def test_rows_that_identify_nothing_change_nothing_and_say_so(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model / "one.csv"
    path.write_text(HEADER + "config.json,h100-sxm-80,8,32,1,4096,9,1,1,megatron,100\n")
    assert main(["fit", str(path), "-o", "found.toml"]) == 0
    assert "nothing: these rows identify no constant" in capsys.readouterr().out
    assert read_calibration("found.toml").values == published().values


def test_a_plan_with_a_calibration_says_so_and_takes_longer_where_products_do(model: Path) -> None:
    Path("slow.toml").write_text(to_toml([{"name": "matmul.h100-sxm-80.bf16", "value": 2.0}]))
    main(["model", "config.json", "-o", "p.json", "--sequence", "1024"])
    ask = ["plan", "p.json", "--devices", "2", "--batch", "8", "--stages", "1", *FIRST]
    assert main([*ask, "-o", "a.json"]) == main([*ask, "-o", "b.json", "--calibration", "slow.toml"]) == 0
    plain, slow = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    assert slow["prediction"]["step_time_ns"] > 1.3 * plain["prediction"]["step_time_ns"]
    assert (plain["assumptions"]["calibration"], len(slow["assumptions"]["calibration"])) == ("", 16)
    assert slow["provenance"]["calibration"]["matmul.h100-sxm-80.bf16"] == 2.0


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["compare", *words, "--profile", "p.json", "--calibration", "slow.toml", "--json"]) == 0
    row: dict[str, object] = json.loads(capsys.readouterr().out)["rows"][0]
    return row


WAYS = (
    "--data 2 --zero 2",
    "--schedule zb-h1 --pin pins.toml",
    "--tensor 2 --sequence-parallel --recompute full",
)
PINS = """
[[stage]]
operators = ["model.embed_tokens", "model.layers.0*", "model.layers.1*"]
ranks = [0]
[[stage]]
operators = ["*"]
ranks = [1]
"""


@pytest.mark.parametrize("name", ["matmul.h100-sxm-80.bf16", "scaleup.h100-sxm-80"])
@pytest.mark.parametrize("way", WAYS)
def test_a_plan_compared_under_a_calibration_takes_what_it_does_planned_under_it(
    model: Path, capsys: pytest.CaptureFixture[str], name: str, way: str
) -> None:
    Path("slow.toml").write_text(to_toml([{"name": name, "value": 2.0}]))
    main(["model", "config.json", "-o", "p.json", "--sequence", "1024"])
    Path("pins.toml").write_text(PINS)
    ask = f"plan p.json --devices 2 --batch 8 --microbatch-size 1 --time-limit 0 {way}".split()
    assert main([*ask, "-o", "a.json"]) == main([*ask, "-o", "b.json", "--calibration", "slow.toml"]) == 0
    plain, slow = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    assert [stage["operators"] for stage in plain["stages"]] == [stage["operators"] for stage in slow["stages"]]
    row = compared(capsys, "a.json")
    assert row["step_time_ns"] == slow["prediction"]["step_time_ns"] > plain["prediction"]["step_time_ns"]
    assert row["peak_memory_bytes_per_rank"] == slow["prediction"]["peak_memory_bytes"]
    assert row["assumptions"] == slow["assumptions"]
    assert row["lower_bound_ns"] is None


def test_a_plan_compared_under_its_own_constants_is_as_it_was(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("slow.toml").write_text(to_toml([{"name": "network.h100-sxm-80", "value": 1.5}]))
    main(["model", "config.json", "-o", "p.json", "--sequence", "1024"])
    ask = ["plan", "p.json", "--devices", "16", "--batch", "32", "--stages", "2", *FIRST, "-o", "a.json"]
    assert main([*ask, "--calibration", "slow.toml"]) == 0
    told = json.loads(Path("a.json").read_text())
    assert compared(capsys, "a.json")["step_time_ns"] == told["prediction"]["step_time_ns"]
    capsys.readouterr()
    assert main(["compare", "a.json", "--calibration", "slow.toml"]) == 2
    assert "--profile FILE go together" in capsys.readouterr().err
    main(["model", "config.json", "-o", "other.json", "--sequence", "512"])
    assert main(["compare", "a.json", "--calibration", "slow.toml", "--profile", "other.json"]) == 6
    main(["model", "config.json", "-o", "a100.json", "--sequence", "1024", "--device", "a100-sxm-80"])
    for asked in (["compare", "a.json", "--calibration", "slow.toml"], ["explain", "a.json"]):
        capsys.readouterr()
        assert main([*asked, "--profile", "a100.json"]) == 6
        assert "the profile was made on 'A100 SXM4 80GB'" in capsys.readouterr().err


def test_a_plan_says_what_steps_are_to_be_expected_by_the_errors_that_its_constants_had(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "matmul.h100-sxm-80.bf16", "value": 1.2}, {"name": "memory.h100-sxm-80.bf16", "value": 1.1}]
    Path("alone.toml").write_text(to_toml(rows))
    Path("good.toml").write_text(to_toml([{**rows[0], "left_out_percent": 4.0}, {**rows[1], "left_out_percent": 8.0}]))
    main(["model", "config.json", "-o", "p.json", "--sequence", "1024"])
    ask = ["plan", "p.json", "--devices", "2", "--batch", "8", *FIRST, "-o", "a.json", "--json"]
    known = published().step_interval(["h100-sxm-80"], "megatron", "dense")
    for flags, wide in (
        ([], known),
        (["--calibration", "alone.toml"], known),
        (["--calibration", "good.toml"], around(0.08)),
    ):
        capsys.readouterr()
        assert main([*ask, *flags]) == 0
        told = json.loads(capsys.readouterr().out)
        low, high = told["step_time_interval_ns"]
        assert (low / told["step_time_ns"], high / told["step_time_ns"]) == pytest.approx(wide, rel=1e-6)
        assert read_plan("a.json").prediction.step_time_interval_ns == (low, high)
    assert main(["show", "a.json"]) == 0
    assert "in four of five jobs" in capsys.readouterr().out
    body = json.loads(Path("a.json").read_text())
    body["prediction"]["step_time_interval_ns"].reverse()
    Path("a.json").write_text(json.dumps(body))
    with pytest.raises(InvalidInput, match="the lower one first"):
        read_plan("a.json")


def test_errors_beyond_measure_count_as_the_largest_that_says_something(tmp_path: Path) -> None:
    row = {"name": "memory.h100-sxm-80.bf16", "value": 1.1}
    for percent, error in ((9e18, 10.0), (0.0, 0.0)):
        (tmp_path / "odd.toml").write_text(to_toml([{**row, "left_out_percent": percent}]))
        assert read_calibration(tmp_path / "odd.toml").errors[str(row["name"])] == error


def test_the_error_of_a_step_is_the_largest_of_all_that_it_rests_on() -> None:
    values = {
        "matmul.d.bf16": 1.1,
        "matmul.d.fp8": 1.0,
        "fp8.t": 1.2,
        "host.t": 5.0,
        "host.t-2022": 9.0,
        "memory.e.bf16": 1.0,
    }
    errors = {
        "matmul.d.bf16": 0.05,
        "matmul.d.fp8": 0.06,
        "fp8.t": 0.2,
        "host.t": 0.07,
        "host.t-2022": 0.1,
        "memory.e.bf16": 0.01,
    }
    known = Calibration(values, errors=errors)
    assert known.step_error(["d"], "bf16", "t") == 0.07
    assert known.step_error(["d"], "bf16", "t-2022") == 0.1
    assert known.step_error(["d"], "fp8", "t") == 0.2
    assert known.step_error(["d"], "bf16", "nobody") == 0.05
    assert known.step_error(["e"], "bf16", "nobody") == 0.03
    assert known.step_error(["unknown"], "bf16", "nobody") is None
    moved = known.with_values({"host.t": 6.0, "matmul.d.bf16": 1.1})
    assert moved.step_error(["d"], "bf16", "t") == 0.05
    assert known.with_values({"host.t": 6.0}, errors={"host.t": 0.01}).step_error(["d"], "bf16", "t") == 0.05


def test_an_interval_is_told_by_trainer_standing_and_kind_of_model_the_widest_of_all_devices() -> None:
    ends = {
        ("any", "fitted", "dense"): (0.9, 1.2),
        ("any", "family", "dense"): (0.8, 1.3),
        ("any", "fitted", "experts"): (0.7, 1.4),
        ("t", "fitted", "dense"): (0.95, 1.1),
    }
    known = Calibration({"matmul.h100-sxm-80.bf16": 1.0, "matmul.hopper.bf16": 1.0}, intervals=ends)
    assert [known.standing(name) for name in ("h100-sxm-80", "h200-sxm-141", "mi300x-192")] == [
        "fitted", "family", "datasheet",
    ]  # fmt: skip
    assert known.step_interval(["h100-sxm-80"], "t-2024", "dense") == (0.95, 1.1)
    assert known.step_interval(["h100-sxm-80"], "other", "dense") == (0.9, 1.2)
    assert known.step_interval(["h100-sxm-80"], "t", "experts") == (0.7, 1.4)
    assert known.step_interval(["h100-sxm-80", "h200-sxm-141"], "t", "dense") == (0.8, 1.3)
    assert known.step_interval(["mi300x-192"], "t", "dense") == around(0.25)


def test_a_trainer_takes_its_version_s_constants_else_its_own_else_those_of_any() -> None:
    known = Calibration({"efficiency.any": 1.3, "efficiency.t": 1.2, "efficiency.t-2022": 1.1,
                         "efficiency.any.grouped": 2.0, "matmul.hopper.bf16": 1.5, "matmul.h100-sxm-80.bf16": 1.1,
                         "host.any": 16.0})  # fmt: skip
    assert [known.of_trainer("efficiency", who) for who in ("t-2022", "t-0_14", "u", "executor")] == [
        1.1,
        1.2,
        1.3,
        1.0,
    ]
    assert [known.of_trainer("host", who) for who in ("u", "executor")] == [16.0, 0.0]
    assert known.efficiency("grouped", "t") == pytest.approx(2.4)
    assert known.factor("matmul", "h100-sxm-80", "fp16") == pytest.approx(1.65)
    assert known.factor("matmul", "h200-sxm-141", "bf16") == 1.5


def test_a_calibration_of_one_trainer_is_refused_for_another_unless_it_says_that_it_is_for_all(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["model", "config.json", "-o", "p.json", "--sequence", "1024"])
    rows = [{"name": "matmul.h100-sxm-80.bf16", "value": 1.2}]
    ask = ["plan", "p.json", "--devices", "1", "--batch", "4", *FIRST, "--calibration", "own.toml", "-o", "a.json"]
    for of, asked, code in (("torchtitan", [], 2), ("torchtitan", ["--trainer", "torchtitan"], 0), ("any", [], 0)):
        Path("own.toml").write_text(to_toml(rows, trainer=of))
        assert main([*ask, *asked]) == code
    Path("own.toml").write_text(to_toml(rows, trainer="torchtitan"))
    main(ask)
    assert "fitted on jobs of torchtitan" in capsys.readouterr().err


def test_a_model_described_with_a_calibration_plans_as_one_calibrated_later(model: Path) -> None:
    Path("slow.toml").write_text(to_toml([{"name": "attention.h100-sxm-80.bf16", "value": 2.0}]))
    main(["model", "config.json", "-o", "p.json", "--sequence", "1024"])
    main(["model", "config.json", "-o", "q.json", "--sequence", "1024", "--calibration", "slow.toml"])
    steps = []
    for name in ("p.json", "q.json"):
        ask = ["plan", name, "--devices", "1", "--batch", "4", *FIRST]
        main([*ask, "--calibration", "slow.toml", "-o", "plan.json"])
        steps.append(json.loads(Path("plan.json").read_text())["prediction"]["step_time_ns"])
    assert steps[0] == pytest.approx(steps[1], rel=1e-3)


def test_flags_tell_a_trainer_otherwise_and_plans_say_what_was_taken(model: Path) -> None:
    main(["model", "config.json", "-o", "p.json", "--sequence", "1024"])
    ask = ["plan", "p.json", "--devices", "2", "--batch", "8", "--data", "2", *FIRST, "-o", "a.json"]
    assert main([*ask, "--trainer", "megatron", "--no-overlap", "--gradient-bytes", "2"]) == 0
    found = json.loads(Path("a.json").read_text())["assumptions"]
    assert (found["trainer"], found["bytes_per_parameter"]["gradients"]) == ("megatron", 2.0)
    assert {"no overlap", "flash", "gradient bytes 2"} <= set(found["habits"])
    assert main([*ask, "--trainer", "nobody"]) == 2


def test_an_action_takes_what_host_or_device_takes_whichever_is_longer() -> None:
    for host, device in ((30, 10), (10, 30), (20, 20)):
        assert paced_ns(host, device) == steady([(host, device, 1)])[0]
    assert paced_ns(30, 10, coupled=0.5) == 35


def test_every_trainer_of_the_table_makes_a_job_and_others_are_refused() -> None:
    for name in trainers():
        job = TrainingJob.of(name, "bf16", "adam")
        assert (job.flash, job.whole_stages) == (habits_of(name).flash, name == "executor")
    with pytest.raises(UsageError, match="no trainer is called"):
        TrainingJob.of("nobody", "bf16", "adam")


def test_what_a_calibration_file_may_not_hold_is_named(tmp_path: Path) -> None:
    for rows, why in (
        ([{"name": "speed.h100", "value": 1.0}], "constants begin with"),
        ([{"name": "matmul.h100-sxm-80.bf16", "value": 99.0}], "lies between"),
        ([{"name": "matmul.h100-sxm-80.bf16", "value": 1.0}] * 2, "occurs twice"),
        ([{"name": "matmul.h100.bf16", "value": 1.0}], "the catalogue has no device 'h100'; near it are h100"),
        ([{"name": "network", "value": 1.0}], "it is called network.DEVICE"),
        ([{"name": "matmul.h100-sxm-80", "value": 1.0}], "it is called matmul.DEVICE.PRECISION, of fp32, tf32"),
        ([{"name": "matmul.h100-sxm-80.int4", "value": 1.0}], "it is called matmul.DEVICE.PRECISION"),
        ([{"name": "host", "value": 1.0}], "it is called host.TRAINER"),
    ):
        (tmp_path / "bad.toml").write_text(to_toml(rows))
        with pytest.raises(InvalidInput, match=why):
            read_calibration(tmp_path / "bad.toml")


def test_what_a_row_of_runs_cannot_mean_is_named_with_its_row(model: Path) -> None:
    good = "config.json,h100-sxm-80,8,32,1,4096,1,8,1,megatron,100"
    for row, why in (
        (good.replace("megatron", "nobody"), "row 1: no trainer is called 'nobody'"),
        (good.replace(",100", ",-1"), "row 1: step_time_ms is '-1'"),
        (good.replace("h100-sxm-80", "h100"), "row 1: "),
        (good.replace(",8,32", ",x,32"), "row 1: devices is 'x'"),
    ):
        (model / "bad.csv").write_text(f"{HEADER}{row}\n")
        with pytest.raises(InvalidInput, match=why):
            read_runs(model / "bad.csv")
    (model / "bad.csv").write_text(f"colour,{HEADER}red,{good}\n")
    with pytest.raises(InvalidInput, match="'colour' means nothing"):
        read_runs(model / "bad.csv")


def test_no_interval_goes_below_what_the_products_take_at_the_devices_peak() -> None:
    wide = replace(published(), intervals={("any", "fitted", "dense"): (0.01, 2.0)})
    asked = Problem(described("llama"), None, 4, 16, target="any", trainer="megatron", calibration=wide)
    least_ns = at_peak_ns(asked)
    assert least_ns > 1
    assert expected_ns(asked, 2 * least_ns) == (least_ns, 4 * least_ns)
    assert expected_ns(asked, 1000 * least_ns) == (10 * least_ns, 2000 * least_ns)
    assert expected_ns(asked, least_ns // 2) == (least_ns // 2, 2 * (least_ns // 2))
