"""The price of a split backward: measured ratios in the profile, and stages that the plan's orders split pay them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.support.steps_in_turn import reordered
from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.capture.clock import HostClock
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.graph import Operator, OperatorGraph
from costmodel.model.profile import Profile, read_profile, write_profile
from costmodel.model.whole_model import SplitRatios, WholeModelMeasurements
from costmodel.profiling.measure.assemble import InOrder, Round, assemble
from costmodel.profiling.measure.rounds import Rounds, time_split
from costmodel.profiling.measure.timing import MarkCost, time_whole
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile as measure
from costmodel.roofline import scale_profile
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from planner.answer.decide import plan as plan_any
from planner.candidate.order import in_split_form, ordered
from planner.checker import check_plan
from planner.plan import Plan
from planner.plan.replay import replay
from planner.question.pins import read_pins
from planner.report.why.what_if import what_ifs
from tests.support import jobs
from tests.support.pipelines import pipelines
from tests.support.random_profiles import chain
from tests.support.repository import GOLDEN
from tests.support.schema_corpus import broken, validator

RATIOS = SplitRatios(1.1, 1.25)
CONTEXT = InOrder(20, (50, 10), (160, 20))
GRAPH = OperatorGraph("two", (Operator("a", "linear"), Operator("loss", "loss")), ())


def measured(profile: Profile, ratios: SplitRatios = RATIOS) -> Profile:
    return replace(profile, whole=replace(profile.whole, split=(ratios,) * len(profile.microbatch_sizes)))


def job(profile: Profile, schedule: str, **choices: int) -> Plan:
    fixed = {"stages": 2, "data": 1, **choices}
    devices = fixed["stages"] * fixed["data"]
    return jobs.job(profile, devices, 8, microbatch_size=1, schedule=schedule, target="executor", **fixed)


def times(plan: Plan) -> list[tuple[object, ...]]:
    costs = [stage.cost for stage in plan.stages]
    return [(c.forward_ns, c.backward_input_ns, c.backward_weight_ns) for c in costs]


def test_a_profile_without_ratios_reads_as_1_and_is_written_without_them(tmp_path: Path) -> None:
    old = read_profile(GOLDEN / "profile.json")
    assert old.whole.split == ()
    assert old.whole.split_at(old.microbatch_sizes, 3) == SplitRatios(1.0, 1.0)
    write_profile(tmp_path / "p.json", old)
    assert "split" not in json.loads((tmp_path / "p.json").read_text())["whole"]


def test_ratios_read_back_as_they_were_written(tmp_path: Path) -> None:
    found = replace(
        chain(3), whole=WholeModelMeasurements((1, 2, 4), split=(RATIOS, SplitRatios(), SplitRatios(1.5, 1.0)))
    )
    write_profile(tmp_path / "p.json", found)
    assert read_profile(tmp_path / "p.json") == found
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["whole"]["split"] == {"forward_ratio": [1.1, 1.0, 1.5], "backward_ratio": [1.25, 1.0, 1.0]}
    assert validator("profile").is_valid(document)


def test_on_ratios_broken_in_one_place_reader_and_schema_agree_but_for_their_number(tmp_path: Path) -> None:
    whole = {"step_ns": [1, 2], "split": {"forward_ratio": [1.1, 1.0], "backward_ratio": [1.25, 1.5]}}
    document = {**json.loads((GOLDEN / "profile.json").read_text()), "whole": whole}
    cases = [(what, wrong) for what, wrong in broken(document) if "'split'" in what]
    assert len(cases) > 50
    for what, wrong in cases:
        said, valid = complaint(wrong, tmp_path / "p.json"), validator("profile").is_valid(wrong)
        assert valid == (not said) or "a micro-batch size" in said, f"{what}: {said}"


def complaint(document: object, path: Path) -> str:
    path.write_text(json.dumps(document))
    try:
        read_profile(path)
    except InvalidInput as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("split", "said"),
    [((RATIOS,), "whole.split needs 3 entries"), ((RATIOS, RATIOS, SplitRatios(0.9, 1)), "a ratio is at least 1")],
)
def test_a_ratio_below_1_or_of_no_size_is_refused(split: tuple[SplitRatios, ...], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        replace(chain(3), whole=WholeModelMeasurements((1, 2, 4), split=split))


def test_the_nearest_measured_size_gives_the_ratio() -> None:
    whole = WholeModelMeasurements((1, 2, 4), split=(SplitRatios(1.3), SplitRatios(1.2), SplitRatios(1.1)))
    assert [whole.split_at((1, 2, 4), size).forward for size in (1, 2, 3, 4, 9)] == [1.3, 1.2, 1.2, 1.1, 1.1]


def test_the_ratio_is_the_median_over_the_rounds_that_ran_the_split_form() -> None:
    pairs = [(110, 480), (0, 0), (900, 900), (0, 0), (120, 440)]
    rounds = [Round(100, 400, 500, CONTEXT, *pair) for pair in pairs]
    assert assemble(GRAPH, [rounds], [{"a": 0.25, "loss": 0.0}]).split == (SplitRatios(1.2, 1.2),)


def test_a_split_form_that_was_quicker_counts_as_noise() -> None:
    rounds = [Round(100, 400, 500, CONTEXT, 90, 410)]
    assert assemble(GRAPH, [rounds], [{"a": 0.25, "loss": 0.0}]).split == (SplitRatios(1.0, 1.025),)


def test_a_model_of_which_nothing_was_run_in_split_form_has_no_ratios() -> None:
    rounds = [Round(100, 400, 500, CONTEXT)]
    assert assemble(GRAPH, [rounds], [{"a": 0.25, "loss": 0.0}]).split == ()


def test_a_size_at_which_the_split_form_did_not_fit_takes_the_nearest_ones_ratio() -> None:
    ran = [[Round(100, 400, 500, CONTEXT, *pair)] for pair in [(0, 0), (120, 400), (110, 400), (0, 0), (0, 0)]]
    shares = [{"a": 0.25, "loss": 0.0}] * 5
    assert [ratios.forward for ratios in assemble(GRAPH, ran, shares).split] == [1.2, 1.2, 1.1, 1.1, 1.1]


def test_a_measured_profile_has_ratios_of_at_least_1_at_each_size() -> None:
    found = measure(Options("tests.support.training_models:two_branch", (1, 2), repeats=3, links=False))
    assert len(found.whole.split) == 2
    assert all(ratios.forward >= 1 and ratios.backward >= 1 for ratios in found.whole.split)


def fails(*_: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("two in flight")


def rounds_of(module: nn.Module) -> Rounds:
    model = TrainingModel("own", module, (torch.randn(4, 6),), {}, None, False, lambda out: out.square().mean(), {}, 4)
    return Rounds(capture(model), model, HostClock(), MarkCost())


def test_the_split_form_is_run_in_every_other_round_and_leaves_two_micro_batches_gradients() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    rounds = rounds_of(module)
    assert [rounds.measure(index)[4] > 0 for index in range(4)] == [True, False, True, False]
    module.zero_grad()
    time_whole(rounds.whole, rounds.piece, rounds.clock)
    once = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad()
    assert rounds.split is not None
    assert min(time_split(rounds.split, rounds.queue, rounds.piece, rounds.clock)) > 0
    assert not rounds.queue.waiting
    for parameter, gradient in zip(module.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient)


def test_a_model_in_which_nothing_can_be_split_is_measured_without() -> None:
    rounds = rounds_of(nn.LayerNorm(6))
    assert rounds.split is None
    assert rounds.measure(0)[4:6] == [0, 0]


def test_a_split_form_that_cannot_be_run_costs_the_ratio_alone() -> None:
    rounds = rounds_of(nn.Linear(6, 5))
    assert rounds.split is not None
    rounds.split = replace(rounds.split, module=fails)  # type: ignore[arg-type]
    assert rounds.measure(0)[4:6] == [0, 0]
    assert rounds.split is None


def test_ratios_stay_when_a_profile_is_scaled_to_another_device() -> None:
    known = replace(chain(3), device=replace(chain(3).device, catalogue="h100-sxm-80"), dtype="float32")
    whole = WholeModelMeasurements((1, 2, 4), split=(SplitRatios(1.3), SplitRatios(1.2), SplitRatios(1.1)))
    found = scale_profile(replace(known, whole=whole), "a100-sxm-80")
    assert found.whole.split == whole.split


def test_a_split_stage_pays_the_ratios_and_one_without_a_backward_does_not() -> None:
    stages = (StageCost(10, 0, 0, backward=False), StageCost((10, 20), 40, 8, recompute_ns=30))
    costs = Costs(stages, (EdgeCost(0, 1, gradient=False),))
    schedule, found = ordered("zb-h1", costs, 2, RATIOS)
    assert {str(action.kind) for order in schedule.orders for action in order} == {"F", "I", "W"}
    assert found.stages == (stages[0], StageCost((11, 22), 50, 10, recompute_ns=33))


def test_whole_backwards_cost_what_they_cost() -> None:
    costs = Costs((StageCost(10, 40, 8),) * 2, (EdgeCost(0, 1),))
    assert ordered("1f1b", costs, 4, RATIOS)[1] is costs
    assert in_split_form(costs, (), RATIOS) is costs
    assert ordered("zb-h1", costs, 4, SplitRatios())[1] is costs


@pytest.mark.parametrize(
    ("schedule", "choices"),
    [("zb-h1", {}), ("zb-h1", {"data": 2}), ("zb-h2", {"stages": 3}), ("zb-auto", {}), ("zb-auto", {"stages": 3})],
)
def test_a_plan_of_split_backwards_is_priced_with_the_ratios_and_simulates_to_its_prediction(
    schedule: str, choices: dict[str, int]
) -> None:
    plain, dear = job(chain(6), schedule, **choices), job(measured(chain(6)), schedule, **choices)
    assert times(dear) == [(round(f * 1.1), round(i * 1.25), round(w * 1.25)) for f, i, w in times(plain)]  # type: ignore[operator]
    assert replay(dear).step_time_ns == dear.prediction.step_time_ns > plain.prediction.step_time_ns
    assert check_plan(dear, chain(6).graph) == ()
    assert dear.provenance["split_ratios"] == {"forward": 1.1, "backward": 1.25}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "graph-1f1b", "graph-auto"])
def test_a_plan_of_whole_backwards_is_the_same_with_ratios_and_without(schedule: str) -> None:
    plain, same = job(chain(6), schedule), job(measured(chain(6)), schedule)
    assert (same.stages, same.orders, same.prediction) == (plain.stages, plain.orders, plain.prediction)


def test_pinned_stages_pay_the_ratios_and_their_bound_holds(tmp_path: Path) -> None:
    pins = tmp_path / "pins.toml"
    pins.write_text('[[stage]]\noperators = ["op[0-2]"]\n[[stage]]\noperators = ["*"]\n')
    problem = pipelines(measured(chain(6)), 2, 8, schedule="zb-h1", pins=read_pins(pins))
    found = plan_any(problem)
    plain = plan_any(replace(problem, profile=chain(6)))
    assert times(found) == [(round(f * 1.1), round(i * 1.25), round(w * 1.25)) for f, i, w in times(plain)]  # type: ignore[operator]
    assert replay(found).step_time_ns == found.prediction.step_time_ns
    assert (found.search.lower_bound_ns or 0) <= found.prediction.step_time_ns
    assert check_plan(found, problem.profile.graph) == ()
    assert what_ifs(found)


def test_the_same_stages_under_another_schedule_are_priced_in_the_form_in_which_they_run() -> None:
    whole = job(measured(chain(6)), "1f1b")
    split = reordered(whole, "zb-h1")
    assert times(split) == times(job(measured(chain(6)), "zb-h1"))
    assert replay(split).step_time_ns == split.prediction.step_time_ns
    assert times(reordered(whole, "gpipe")) == times(whole)
    with pytest.raises(UsageError, match="splits backwards already"):
        reordered(split, "gpipe")
