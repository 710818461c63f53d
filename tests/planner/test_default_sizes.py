"""Micro-batch sizes of a described model for which none are said: no flag finds a faster size than the default."""

import pytest

from costmodel.architectures.command import LARGEST_SIZE, USUAL_SIZES
from planner import Effort, Problem, Space, make_plan, model


@pytest.mark.parametrize(("name", "sequence", "most"), [("llama3-70b", 4096, 4), ("vit-b-16", 0, LARGEST_SIZE)])
def test_sizes_go_on_while_a_device_holds_what_the_model_keeps(name: str, sequence: int, most: int) -> None:
    sizes = model(name, sequence=sequence).microbatch_sizes
    assert sizes[: len(USUAL_SIZES)] == USUAL_SIZES
    assert sizes[-1] == most


def test_the_default_is_no_slower_than_a_larger_micro_batch_by_flag() -> None:
    question = Problem(
        model("vit-b-16"), None, 8, 256, effort=Effort(300.0, 0.0), target="any",
        space=Space(stages=1, tensor=1, context=1),
    )  # fmt: skip
    best = make_plan(question).plan.search.best_step_time_ns
    for size in (8, 16):
        fixed = Problem(
            question.profile, None, 8, 256, size, effort=question.effort, target="any", space=question.space
        )
        assert best <= make_plan(fixed).plan.search.best_step_time_ns
