"""Described and captured models of one configuration (`benchmarks.described`, `benchmarks.model_families`)."""

import warnings
from typing import Any

import pytest

from benchmarks import described
from benchmarks.model_families.__main__ import text_of, verdict
from benchmarks.model_families.shapes import SHAPES
from costmodel.model.profile import Profile
from tests.support.transformers_families import FAMILIES

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

DEGREES = [described.DEGREES[name] for name in ("one device", "tensor 8", "tensor 8, sequence")]


@pytest.mark.parametrize("model_type", ["vit", "gpt2", "gpt_oss"])
def test_described_and_captured_do_take_and_keep_the_same(model_type: str) -> None:
    """Operations equal, step prices within 2 %, kept bytes within 3 %."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pair = described.both(model_type)
    one, other = (sum(operator.flop for operator in profile.graph.operators) for profile in pair)
    assert one == other
    for config in DEGREES:
        (step, kept), (taken, held) = (described.price(profile, config) for profile in pair)
        assert taken == pytest.approx(step, rel=0.02)
        assert held == pytest.approx(kept, rel=0.03)
    if model_type == "gpt_oss":
        assert kernels_of(pair[1]) == kernels_of(pair[0])


def kernels_of(profile: Profile) -> list[tuple[int, int, int, bool]]:
    """Heads, groups of them, keys that are seen and the mask of each attention."""
    works = (operator.work for operator in profile.graph.operators)
    return [(w.heads, w.kv_heads, w.context, w.causal) for w in works if w and w.kind == "attention"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"model_exit": 3, "said": "no"}, "refused"),
        ({"model_exit": 1, "said": "no"}, "error"),
        ({"model_exit": 0, "plan_exit": 0, "parameters": 2, "counted": 3}, "miscounted"),
        ({"model_exit": 0, "plan_exit": 0, "parameters": 3, "counted": 3}, "planned"),
    ],
)
def test_a_configuration_is_planned_refused_miscounted_or_an_error(found: dict[str, Any], expected: str) -> None:
    assert verdict(found) == expected
    if "said" in found:
        assert expected in text_of({"model": "m", **found})


def test_shapes_of_the_benchmark_are_of_other_types_than_those_of_the_tests() -> None:
    assert len(SHAPES) >= 30
    assert not FAMILIES.keys() & {kind for kind, _ in SHAPES.values()}
