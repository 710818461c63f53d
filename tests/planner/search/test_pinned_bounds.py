"""Where pins place some of the stages, no bound is above any plan around them, however they are configured."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest

from costmodel.errors import UsageError
from costmodel.model.profile import OperatorTimes, Profile
from planner.answer.decide import plan
from planner.graph.atoms import numbered, prepare
from planner.question.pins import read_pins
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.space.open_choices import with_split_backward
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem
from tests.properties.exact_promises import COUNTED
from tests.support.pipelines import pipelines
from tests.support.random_profiles import SIZES, random_profile


def saturating(profile: Profile, power: float) -> Profile:
    """Return a profile whose larger micro-batches take less for each sample: small ones leave devices idle."""
    scale = [size ** (power - 1) for size in SIZES]

    def scaled(row: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(round(ns * part) for ns, part in zip(row, scale, strict=True))

    times = (
        OperatorTimes(scaled(t.forward_ns), scaled(t.backward_input_ns), scaled(t.backward_weight_ns), t.spread)
        for t in profile.times
    )
    return replace(profile, times=tuple(times))


def partly_pinned(folder: Path, seed: int) -> Problem:
    """Return a small problem with one or two stages on ranks that pins give, with options of their own."""
    rng = Random(seed)
    profile = saturating(random_profile(rng, rng.randint(4, 7)), rng.choice([1.0, 0.7, 0.4]))
    atoms = prepare(profile.graph).members
    first = rng.randrange(len(atoms) - 1)
    pinned = [[first], [len(atoms) - 1]][: rng.randint(1, 2)]
    lines, free = list[str](), 0
    for row in pinned:
        ranks = list(range(free, free + rng.randint(1, 2))) if rng.random() < 0.8 else [0]
        free = max(free, ranks[-1] + 1)
        names = [profile.graph.operators[i].name for atom in row for i in atoms[atom]]
        config = f'{{zero = {rng.randint(0, 1)}, recompute = "{rng.choice(["none", "full"])}"}}'
        lines += ["[[stage]]", f"operators = {json.dumps(names)}", f"ranks = {ranks}", f"config = {config}"]
        lines += [f"microbatch_multiple = {rng.choice([1, 2, 4])}"]
    (folder / "pins.toml").write_text("\n".join(lines))
    options = {"space": Space(recompute="none"), "optimizer": rng.choice(["none", "adam"])}
    return pipelines(profile, free + rng.randint(1, 2), 8, None, pins=read_pins(folder / "pins.toml"), **options)


def around_pins(cuts: FamilyPartitions) -> Iterator[tuple[int, ...]]:
    """Yield every cut in which each pinned atom is a stage of its own."""
    pinned, seen = list(cuts.pinned.places), set[tuple[int, ...]]()
    free = [atom for atom in range(len(cuts.atoms)) if atom not in cuts.pinned.places]
    for groups in product(range(len(free)), repeat=len(free)):
        group_of = dict(zip(free, groups, strict=True)) | {atom: len(free) + i for i, atom in enumerate(pinned)}
        found = numbered(cuts.atoms, [group_of[atom] for atom in range(len(cuts.atoms))])
        if found and max(found) < cuts.num_places and found not in seen:
            seen.add(found)
            yield found


@pytest.mark.parametrize("seed", [*range(1, 7), 72])
def test_no_bound_is_above_a_plan_around_pinned_stages(tmp_path: Path, seed: int) -> None:
    problem = partly_pinned(tmp_path, seed)
    prepared, steps = PreparedProblem(problem), list[int]()
    for whole in prepared.families.all:
        for family in (whole, with_split_backward(whole)):
            cuts = prepared.cuts(family)
            found = [each for row in around_pins(cuts) for each in cuts.evaluate_under(row, cuts.schedules)]
            steps += [each.step_time_ns for each in found if each.fits]
            assert all((prepared.free_bounds.bound_ns(family) or 0) <= each.step_time_ns for each in found), family
    counted = replace(problem, effort=COUNTED)
    if not steps:
        with pytest.raises(UsageError, match="pinned stages part what is left"):
            plan(counted)
        return
    search = plan(counted).search
    assert search.lower_bound_ns is not None
    assert search.lower_bound_ns <= min(steps)
    assert search.best_step_time_ns <= min(steps) * 1.3
