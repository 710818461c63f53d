"""Costs files: lists of one value an action."""

import json
from pathlib import Path

import pytest

from costmodel.errors import InvalidInput
from costmodel.stages.costs_file import read_costs


def costs_file(folder: Path, **first_stage: object) -> Path:
    plain = {"forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1}
    path = folder / "costs.json"
    path.write_text(json.dumps({"format": "penstock-costs", "version": 1, "stages": [{**plain, **first_stage}, plain]}))
    return path


@pytest.mark.parametrize(("values", "multiple"), [([1, 2, 3, 4], 1), ([1, 2], 2), ([1] * 8, 1)])
def test_a_list_has_one_value_an_action_or_as_many_for_each_of_its_slices(tmp_path, values, multiple):
    costs = read_costs(costs_file(tmp_path, forward_ns=values, microbatch_multiple=multiple), 4)
    assert costs.stages[0].forward_ns == tuple(values)


def test_a_list_of_another_length_is_refused_with_its_place(tmp_path):
    path = costs_file(tmp_path, forward_ns=[1, 2, 3], microbatch_multiple=2)
    with pytest.raises(InvalidInput) as caught:
        read_costs(path, 4)
    words = "found a list of 3 values; 2 are needed, one an action (4 micro-batches, 2 an action)"
    assert str(caught.value) == f"{path}: /stages/0/forward_ns: {words}"
