"""Random stages on random ranks: whatever is not refused with a reason passes the independent checker."""

import json
from random import Random

import pytest

from costmodel.errors import UsageError
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.graph.atoms import prepare
from planner.question.pins import read_pins
from simulator.schedules import SCHEDULES
from tests.support.pipelines import pipelines
from tests.support.random_profiles import random_profile


def random_pins(rng, graph, num_devices):
    """Cut the atoms into runs; place each on random ranks, or all of them in a loop."""
    atoms = prepare(graph).members
    cuts = sorted(rng.sample(range(1, len(atoms)), rng.randint(0, min(4, len(atoms) - 1))))
    parts = [atoms[a:b] for a, b in zip([0, *cuts], [*cuts, len(atoms)], strict=True)]
    loop, lines = rng.random() < 0.3, []
    rows = [
        [i % num_devices] if loop else rng.sample(range(num_devices), rng.randint(1, num_devices))
        for i in range(len(parts))
    ]
    used = sorted({rank for row in rows for rank in row})  # ranks are numbered without a gap
    for part, row in zip(parts, rows, strict=True):
        names = [graph.operators[i].name for members in part for i in members]
        zero, recompute = rng.randint(0, 1), rng.choice(["none", "full"])
        lines += ["[[stage]]", f"operators = {json.dumps(names)}", f"ranks = {[used.index(rank) for rank in row]}"]
        lines += [f'config = {{zero = {zero}, recompute = "{recompute}"}}']
        lines += [f"microbatch_multiple = {rng.choice([1, 1, 2, 4])}"]
    return "\n".join(lines)


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_every_plan_by_pins_passes_the_checker(tmp_path, start):
    planned = 0
    for seed in range(start, start + 20):
        rng = Random(seed)
        frozen = frozenset(range(rng.choice([0, 0, 2])))
        profile = random_profile(rng, rng.randint(3, 12), frozen=frozen, host_ns=rng.choice([0, 500]))
        num_devices = rng.randint(1, 4)
        (tmp_path / "pins.toml").write_text(random_pins(rng, profile.graph, num_devices))
        name = rng.choice(["auto", rng.choice(list(SCHEDULES))])
        pins = read_pins(tmp_path / "pins.toml")
        optimizer = rng.choice(["none", "adam"])
        problem = pipelines(profile, num_devices, 8, schedule=name, optimizer=optimizer, pins=pins)
        try:
            found = plan(problem)
        except UsageError:
            assert SCHEDULES[name].placement != "graph" or name == "graph-kfkb"
        else:
            assert not check_plan(found, profile.graph), seed
            planned += 1
    assert planned >= 10
