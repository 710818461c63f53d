"""What the checker derives of divided stages: units, sums, modules, borders, degrees that do not go together."""

from dataclasses import replace

import pytest

from costmodel.capture.capture import operator_graph
from costmodel.capture.works import with_works
from costmodel.stages.config import StageConfig
from planner.checker import check_plan
from tests.properties.altered_divided_plans import BASES, altered_plan_failures, base, captured


def problems(plan):
    graph = with_works(operator_graph(captured(), (2,)), captured())
    return [f"{problem.place}: {problem.message}" for problem in check_plan(plan, graph)]


def with_stage(name, index=0, **changes):
    plan = base(name)
    stages = list(plan.stages)
    stages[index] = replace(stages[index], **changes)
    return replace(plan, stages=tuple(stages))


@pytest.mark.parametrize("name", BASES)
def test_a_divided_plan_as_the_planner_makes_it_has_nothing_wrong(name):
    assert problems(base(name)) == []


UNITS = ("layers.0", "layers.1", "layers.2", "layers.3")
WRONG = [
    ("zero-3", {"units": (*UNITS, "layers.1")}, "the unit 'layers.1' occurs twice"),
    ("zero-3", {"units": (*UNITS, "layers.1.up")}, "lie in each other"),
    ("zero-3", {"units": (*UNITS, "tail")}, "'tail' is no block that it holds whole"),
    ("zero-3", {"units": UNITS[1:]}, "all_gather: "),
    ("zero-3", {"reduce": "step"}, "reduce_scatter: "),
    ("zero-3 twice", {"units": UNITS}, "is no block that it holds whole"),
    ("zero-1", {"units": UNITS[:1]}, "and ZeRO-1 gathers nothing"),
    ("zero-1", {"modules": ("layers.0",)}, "by the model ['layers.0', 'layers.1"),
    ("tensor", {"config": StageConfig(tensor=2, zero=1)}, "has ZeRO-1 and tensor = 2 together"),
]


@pytest.mark.parametrize(("name", "changes", "words"), WRONG, ids=[f"{name} {changes}" for name, changes, _ in WRONG])
def test_what_a_divided_stage_says_otherwise_than_its_model_is_found(name, changes, words):
    found = problems(with_stage(name, **changes))
    assert any(words in line for line in found), found


@pytest.mark.parametrize("name", ["zero-3", "zero-2 recomputed", "zero-3 twice", "tensor"])
@pytest.mark.parametrize("key", ["count", "size_bytes"])
def test_a_collective_of_half_its_number_or_bytes_is_found(name, key):
    if (name, key) == ("tensor", "size_bytes"):
        pytest.skip("bytes of lanes' sums are not derived")
    first = base(name).stages[0].collectives
    halved = (replace(first[0], **{key: getattr(first[0], key) // 2}), *first[1:])
    assert any(f"stage 0: {first[0].kind}: " in line for line in problems(with_stage(name, collectives=halved)))


def test_a_border_that_the_executor_leaves_divided_nowhere_is_found():
    plan = base("zero-1")
    stages = tuple(replace(stage, config=StageConfig(tensor=2)) for stage in plan.stages)
    edge = replace(plan.edges[0], border="shard(1)")
    found = problems(replace(plan, stages=stages, edges=(edge, *plan.edges[1:])))
    assert any("the border is shard(1), and the executor" in line for line in found), found


def test_altered_plans_of_divided_stages_run_exact_or_are_refused(tmp_path):
    assert altered_plan_failures(40, str(tmp_path)) == []
