"""What an operator does: its JSON form, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.codec import record
from costmodel.errors import InvalidInput
from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import read_profile, write_profile
from costmodel.model.work import Work
from tests.support.repository import GOLDEN


def test_work_of_an_operator_survives_the_profile_file(tmp_path: Path) -> None:
    profile = read_profile(GOLDEN / "profile.json")
    work = Work("attention", "inner", 128, inner=64, outer=64, heads=8, kv_heads=2, context=128, causal=True)
    first, *others = profile.graph.operators
    graph = profile.graph
    worked = OperatorGraph(graph.name, (replace(first, work=work), *others), graph.tensors, graph.parameters)
    write_profile(tmp_path / "p.json", replace(profile, graph=worked))
    assert read_profile(tmp_path / "p.json").graph.operators[0].work == work


def test_the_json_form_holds_only_what_differs_from_the_defaults() -> None:
    assert record(Work).write(Work("norm", "sequence", 16, outer=8)) == {
        "kind": "norm",
        "split": "sequence",
        "tokens": 16,
        "outer": 8,
    }


@pytest.mark.parametrize(("kind", "split", "word"), [("gemm", "row", "kind"), ("matmul", "rows", "split")])
def test_an_unknown_kind_or_split_is_refused_with_those_allowed(kind: str, split: str, word: str) -> None:
    with pytest.raises(InvalidInput, match=f"work.{word} is .* allowed are"):
        Work(kind, split, 1)
