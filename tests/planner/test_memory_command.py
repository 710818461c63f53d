"""penstock memory: what each strategy holds, the word, how far sizes may grow, and changes that planning confirms."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.architectures.command import make
from costmodel.model.profile import write_profile
from planner.answer.held_memory import FixedPlans, HeldMemory
from planner.answer.memory_table import MemoryRow, MemoryTable
from planner.commands import main
from planner.plan import read_plan
from planner.plan.fitting import DOES_NOT_FIT, FITS, FITTING, fitting_of
from planner.question.space import Space
from tests.support.described_models import described

KEYS = {"strategy", "microbatch_size", "point_bytes", "upper_bytes", "terms", "fits", "largest_microbatch_size",
        "longest_sequence", "change"}  # fmt: skip


def table(limit: int = 0, **options: object) -> MemoryTable:
    known = {"memory_limit_bytes": limit} if limit else {}
    return MemoryTable(FixedPlans(lambda _: described("gpt2"), 4, options={**known, **options}))


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["memory", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_every_row_says_what_the_fullest_rank_holds_term_by_term(capsys) -> None:
    answer = asked(capsys, "llama3-8b", "--devices", "4")
    rows = {row["strategy"]: row for row in answer["rows"]}
    assert {"data-parallel", "zero-1", "zero-2", "zero-3", "tensor", "pipeline"} == set(rows)
    for row in rows.values():
        assert set(row) == KEYS
        assert sum(term["point_bytes"] for term in row["terms"].values()) == row["point_bytes"]
        assert all(term["upper_bytes"] >= term["point_bytes"] >= 0 for term in row["terms"].values())
        assert row["upper_bytes"] >= row["point_bytes"]
        assert row["fits"] in FITTING
        assert (row["change"] is None) == (row["fits"] == FITS)
    peaks = [rows[f"zero-{zero}"]["point_bytes"] for zero in (1, 2, 3)]
    assert peaks == sorted(peaks, reverse=True), "a deeper ZeRO holds no more"


def test_experts_over_all_ranks_are_whole_where_their_parts_would_not_spread() -> None:
    plans, fixed = (
        FixedPlans(lambda _: described("mixtral"), 4),
        Space(stages=1, data=2, tensor=2, sequence_parallel=True, expert=4),
    )
    assert isinstance(plans.held(fixed, 1), HeldMemory)
    assert plans.held(fixed, 1) == plans.held(replace(fixed, expert_tensor=1), 1)
    assert "do not divide the 4 ranks of a stage" in str(plans.held(replace(fixed, expert_tensor=2), 1))


def test_sizes_that_are_said_to_fit_do_and_the_next_one_does_not() -> None:
    found = table()
    row = found.rows()[0]
    limit = row.held.upper_bytes * 2
    found = table(limit)
    for row in found.rows():
        (space,) = [space for name, space in found.strategies() if name == row.strategy]
        best, next_one = (found.plans.held(space, size) for size in (row.largest_microbatch_size, _above(row)))
        assert isinstance(best, HeldMemory)
        assert best.fits == FITS
        assert not isinstance(next_one, HeldMemory) or next_one.fits != FITS


def _above(row: MemoryRow) -> int:
    """A size that is clearly above the largest."""
    return row.largest_microbatch_size * 51 // 50 + 2


def test_a_change_that_is_said_to_make_a_row_fit_does_when_it_is_planned(tmp_path: Path, capsys) -> None:
    profile, output = tmp_path / "profile.json", tmp_path / "plan.json"
    known, _ = make("llama3-8b", "h100-sxm-80", (1,))
    write_profile(profile, known)
    found = MemoryTable(FixedPlans(lambda _: known, 8))
    rows = [row for row in found.rows() if row.held.fits != FITS]
    assert [row.strategy for row in rows] == ["data-parallel", "zero-1"]
    assert all(row.change for row in rows)
    for row in rows:
        (space,) = [space for name, space in found.strategies() if name == row.strategy]
        choices = {"stages": space.stages, "data": space.data, "tensor": space.tensor, "zero": space.zero,
                   "recompute": space.recompute, "offload": space.offload, "microbatch-size": 1}  # fmt: skip
        words = row.change.replace("--sequence-parallel", "").split()
        choices |= {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
        flags = [word for name, value in choices.items() for word in (f"--{name}", str(value))]
        flags += ["--sequence-parallel"] * ("--sequence-parallel" in row.change)
        code = main(
            [
                "plan",
                str(profile),
                "--devices",
                "8",
                "--batch",
                "16",
                "--target",
                "any",
                "--schedule",
                "1f1b",
                "--deterministic-limit",
                "0",
                "-o",
                str(output),
                *flags,
            ]
        )
        capsys.readouterr()
        assert code == 0, row.change
        assert fitting_of(read_plan(output)) == FITS, (row.strategy, row.change)


def test_more_memory_never_makes_a_word_worse_and_a_margin_never_a_better_one() -> None:
    base = min(row.held.upper_bytes for row in table().rows())
    words = [[FITTING.index(row.held.fits) for row in table(limit).rows()] for limit in (base // 2, base, 2 * base)]
    assert all(a >= b >= c for a, b, c in zip(*words, strict=True))
    wide = [FITTING.index(row.held.fits) for row in table(base, memory_margin_bytes=base // 2).rows()]
    assert all(a >= b for a, b in zip(wide, words[1], strict=True))
    assert {row.held.fits for row in table(1 << 12).rows()} == {DOES_NOT_FIT}


def test_a_profile_is_asked_as_it_is_and_a_forward_alone_holds_less(tmp_path: Path, capsys) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, described("gpt2"))
    trained, forward = (asked(capsys, str(path), "--devices", "1", *more) for more in ((), ("--forward-only",)))
    assert trained["rows"][0]["longest_sequence"] is None
    assert forward["rows"][0]["point_bytes"] < trained["rows"][0]["point_bytes"]
    assert "gradients" not in forward["rows"][0]["terms"]
    assert main(["memory", str(path), "--devices", "1", "--sequence", "8"]) == 2
    assert "is a profile" in capsys.readouterr().err
