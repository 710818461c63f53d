"""GraphPipe: series-parallel trees, and the slowest stage against a brute force of the same objective."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks import graphpipe as evaluation
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.stages.config import StageConfig
from planner.candidate.evaluate import Evaluated
from planner.question.effort import Effort
from planner.question.pins import Group, Pins
from planner.question.problem import Problem
from planner.search.budget import Deadline
from planner.search.published import graphpipe
from planner.search.published.graph_stages import FoundStages, GraphStages
from planner.search.published.prices import View
from planner.search.published.proposals import ProposedStage, partition_of, placings
from planner.search.published.rival import Rival, search
from planner.search.published.series_parallel import TreePart, decompose
from planner.search.published.stretches import Allowance, Choice
from planner.search.state.prepared import PreparedProblem
from simulator.schedules.warmup import in_flight_microbatches
from tests.support.random_profiles import branches, random_profile

Edges = Sequence[tuple[int, int]]
Tree = int | tuple[str, tuple["Tree", ...]]
"""An atom, or parts one after the other (s) or side by side (p)."""
NUM_MICROBATCHES = 12


def shape(part: TreePart) -> object:
    """Write a part as a tree of the tests."""
    return part.atoms[0] if part.kind == "atom" else (part.kind[0], tuple(map(shape, part.children)))


def successors(size: int, edges: Edges) -> list[list[int]]:
    return [[target for source, target in edges if source == atom] for atom in range(size)]


def tree_of(size: int, edges: Edges) -> TreePart:
    return decompose(successors(size, edges), range(size))


@pytest.mark.parametrize(
    ("size", "edges", "expected"),
    [
        pytest.param(1, [], ("s", (0,)), id="a single atom"),
        pytest.param(3, [(0, 1), (1, 2)], ("s", (0, 1, 2)), id="a chain"),
        pytest.param(3, [(0, 1), (1, 2), (0, 2)], ("s", (0, 1, 2)), id="a chain with a skip"),
        pytest.param(4, [(0, 1), (0, 2), (1, 3), (2, 3)], ("s", (0, ("p", (1, 2)), 3)), id="a diamond"),
        pytest.param(
            6,
            [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (0, 5)],
            ("s", (0, ("p", (("s", (1, ("p", (2, 3)), 4)), 5)))),
            id="a diamond in a branch, two sinks",
        ),
        pytest.param(4, [(0, 2), (0, 3), (1, 2), (1, 3)], ("s", (("p", (0, 1)), ("p", (2, 3)))), id="all to all"),
        pytest.param(3, [(0, 2), (1, 2)], ("s", (("p", (0, 1)), 2)), id="two sources"),
        pytest.param(3, [(0, 1), (0, 2)], ("s", (0, ("p", (1, 2)))), id="two sinks"),
        pytest.param(4, [(0, 1), (2, 3)], ("p", (("s", (0, 1)), ("s", (2, 3)))), id="two models"),
        pytest.param(4, [(0, 2), (0, 3), (1, 3)], ("l", (0, 1, 2, 3)), id="an N"),
        pytest.param(
            6,
            [(0, 1), (0, 2), (1, 3), (1, 4), (2, 4), (3, 5), (4, 5)],
            ("s", (0, ("l", (1, 2, 3, 4)), 5)),
            id="a bridge",
        ),
    ],
)
def test_a_graph_is_a_tree_of_series_and_parallel_parts_and_of_lines_where_it_is_neither(
    size: int, edges: Edges, expected: object
) -> None:
    assert shape(tree_of(size, edges)) == expected


def test_atoms_in_lines_are_those_of_the_smallest_parts_that_are_neither() -> None:
    bridge = [(1, 2), (1, 3), (2, 4), (2, 5), (3, 5), (4, 6), (5, 6)]
    found = tree_of(8, [*bridge, (0, 1), (0, 7)])
    assert found.num_in_lines == 4
    assert tree_of(4, [(0, 1), (0, 2), (1, 3), (2, 3)]).num_in_lines == 0


@dataclass(frozen=True)
class Case:
    """A graph with what each atom works, keeps and holds on one device; parameters may be shared."""

    tree: Tree
    works: tuple[int, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    parameters: tuple[int, ...]
    saving: tuple[float, ...]
    closing: int
    num_devices: int
    memory: float

    @property
    def edges(self) -> list[tuple[int, int]]:
        return sorted(set(edges_of(self.tree)))

    def time(self, atoms: frozenset[int], replicas: int, multiple: int) -> float:
        crossing = {a for a, b in self.edges if (a in atoms) != (b in atoms)}
        work = sum(self.works[atom] for atom in atoms) * self.saving[multiple - 1]
        return (work + sum(self.sizes[atom] for atom in crossing)) / replicas + self.closing * (replicas > 1)

    def static(self, atoms: frozenset[int]) -> int:
        return sum({self.parameters[atom] for atom in atoms})

    def activation(self, atoms: frozenset[int], multiple: int) -> int:
        received = {a for a, b in self.edges if b in atoms and a not in atoms}
        return multiple * (sum(self.kept[atom] for atom in atoms) + sum(self.sizes[atom] for atom in received))


def atoms_of(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [atom for child in tree[1] for atom in atoms_of(child)]


def ends_of(tree: Tree, place: int) -> list[int]:
    """Return the sources (place 0) or the sinks (-1) of a tree."""
    if isinstance(tree, int):
        return [tree]
    children = [tree[1][place]] if tree[0] == "s" else tree[1]
    return [atom for child in children for atom in ends_of(child, place)]


def edges_of(tree: Tree) -> Iterator[tuple[int, int]]:
    if isinstance(tree, int):
        return
    for child in tree[1]:
        yield from edges_of(child)
    if tree[0] == "s":
        for one, other in zip(tree[1], tree[1][1:], strict=False):
            yield from product(ends_of(one, -1), ends_of(other, 0))
        if len(tree[1]) > 2:
            yield ends_of(tree[1][0], 0)[0], ends_of(tree[1][-1], 0)[0]  # a skip


def random_tree(rng: Random, atoms: Sequence[int], kind: str) -> Tree:
    if len(atoms) == 1:
        return atoms[0]
    cuts = sorted(rng.sample(range(1, len(atoms)), rng.randint(1, min(3, len(atoms) - 1))))
    rows = [atoms[a:b] for a, b in zip([0, *cuts], [*cuts, len(atoms)], strict=True)]
    return kind, tuple(random_tree(rng, row, "p" if kind == "s" else "s") for row in rows)


def random_case(seed: int) -> Case:
    rng = Random(seed)
    size = rng.randint(2, 7)

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randint(low, high) for _ in range(size))

    return Case(
        random_tree(rng, range(size), rng.choice("sssp")), numbers(1, 40), numbers(0, 6), numbers(1, 9), numbers(1, 20),
        (1.0, rng.choice((0.8, 1.0))), rng.choice((0, 4, 15)), rng.randint(2, 5), rng.choice((35.0, 50.0, 80.0, 1e9)),
    )  # fmt: skip


def divisions(tree: Tree) -> set[frozenset[frozenset[int]]]:
    """Return all ways to divide a tree: neighbouring children are one stage, or a child is divided by itself."""
    if isinstance(tree, int):
        return {frozenset([frozenset([tree])])}
    found = set()
    for cuts in product((False, True), repeat=len(tree[1]) - 1):
        stretches: list[list[Tree]] = [[tree[1][0]]]
        for cut, child in zip(cuts, tree[1][1:], strict=True):
            if cut:
                stretches.append([])
            stretches[-1].append(child)
        options = [{frozenset([frozenset(a for child in stretch for a in atoms_of(child))])} for stretch in stretches]
        for stretch, option in zip(stretches, options, strict=True):
            option |= divisions(stretch[0]) if len(stretch) == 1 else set()
        found |= {frozenset().union(*rows) for rows in product(*options)}
    return found


def holds(case: Case, stages: Sequence[frozenset[int]], ways: Sequence[tuple[int, int]]) -> bool:
    """Whether stages (a circle of them is an error) hold what 1F1B on their graph keeps in flight."""
    stage_of = {atom: number for number, atoms in enumerate(stages) for atom in atoms}
    pairs = {(stage_of[a], stage_of[b]) for a, b in case.edges} - {(i, i) for i in range(len(stages))}
    batches = {number: replicas * multiple for number, (replicas, multiple) in enumerate(ways)}
    follow = {i: {b: 0 for a, b in pairs if a == i} for i in range(len(stages))}
    in_flight = in_flight_microbatches(batches, topological(len(stages), pairs), follow)
    for number, (atoms, (_, multiple)) in enumerate(zip(stages, ways, strict=True)):
        actions = min(in_flight[number], -(-NUM_MICROBATCHES // batches[number]) * batches[number]) // batches[number]
        if case.static(atoms) + actions * case.activation(atoms, multiple) > case.memory:
            return False
    return True


def topological(size: int, pairs: set[tuple[int, int]]) -> list[int]:
    order: list[int] = []
    while len(order) < size:
        order.append(next(i for i in range(size) if i not in order and all(a in order for a, b in pairs if b == i)))
    return order


def brute_force(case: Case) -> float | None:
    best: float | None = None
    ways = list(product(range(1, case.num_devices + 1), (1, 2)))
    for division in divisions(case.tree):
        stages = sorted(division, key=min)
        for chosen in product(ways, repeat=len(stages)) if len(stages) <= case.num_devices else ():
            if sum(replicas for replicas, _ in chosen) > case.num_devices:
                continue
            time = max(case.time(atoms, *way) for atoms, way in zip(stages, chosen, strict=True))
            if (best is None or time < best) and holds(case, stages, chosen):
                best = time
    return best


def solve(case: Case, limits: Deadline | None = None) -> FoundStages | None:
    size = len(case.works)
    root = tree_of(size, case.edges)
    choices = {part.atoms: [choice(case, part, multiple) for multiple in (1, 2)] for part in root.divisible}
    works = [work * min(case.saving) for work in case.works]
    allowance = Allowance(case.num_devices, case.memory, range(1, case.num_devices + 1))
    return GraphStages(root, choices, works, allowance, NUM_MICROBATCHES, limits or Deadline(600)).best()


def choice(case: Case, part: TreePart, multiple: int) -> Choice:
    count = len(part.children)

    def table(value: Callable[[frozenset[int]], float]) -> np.ndarray:
        found = np.full((count + 1, count + 1), np.inf)
        for start in range(count):
            for stop in range(start + 1, count + 1):
                found[start, stop] = value(frozenset(a for c in part.children[start:stop] for a in c.atoms))
        return found

    counts = range(1, case.num_devices + 1)
    times = [table(partial(case.time, replicas=count, multiple=multiple)) for count in counts]
    static = np.array([table(case.static)] * case.num_devices)
    return Choice(1, multiple, np.array(times), static, table(partial(case.activation, multiple=multiple)))


@cache
def solved(seed: int) -> tuple[Case, FoundStages | None]:
    case = random_case(seed)
    return case, solve(case)


@pytest.mark.parametrize("seed", range(60))
def test_the_slowest_stage_is_as_fast_as_that_of_any_division_that_fits(seed: int) -> None:
    case, answer = solved(seed)
    best = brute_force(case)
    assert (answer is None) == (best is None)
    if answer and best:
        assert answer.time_ns == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_stages_come_in_an_order_in_which_none_waits_for_a_later_one_and_keep_devices_and_memory(seed: int) -> None:
    case, answer = solved(seed)
    if answer is None:
        return
    stage_of = {atom: number for number, stage in enumerate(answer.stages) for atom in stage.atoms}
    assert sorted(stage_of) == list(range(len(case.works))) == sorted(a for s in answer.stages for a in s.atoms)
    assert all(stage_of[a] <= stage_of[b] for a, b in case.edges)
    assert sum(stage.replicas for stage in answer.stages) <= case.num_devices
    stages, ways = [frozenset(s.atoms) for s in answer.stages], [(s.replicas, s.way + 1) for s in answer.stages]
    assert holds(case, stages, ways)
    assert max(case.time(atoms, *way) for atoms, way in zip(stages, ways, strict=True)) == answer.time_ns


def test_none_is_found_after_the_deadline() -> None:
    assert solve(random_case(3), Deadline(0)) is None


def view_of(problem: Problem) -> View:
    return View(PreparedProblem(problem), 1)


def planned(problem: Problem) -> Evaluated:
    counted = replace(problem, effort=Effort(60.0, 0.0))
    return search(Rival("graphpipe", graphpipe.propose, line=False), counted, None).pool.best


@pytest.mark.parametrize("seed", range(8))
def test_a_proposal_is_a_partition_whose_stages_are_listed_in_the_order_of_their_graph(seed: int) -> None:
    rng = Random(seed)
    view = view_of(Problem(random_profile(rng, rng.randint(4, 14)), None, rng.randint(2, 6), 24, microbatch_size=1))
    stages = graphpipe.propose(view, float("inf"), Deadline(600))
    assert stages is not None
    partition = partition_of(view, stages)
    assert [partition[stage.atoms[0]] for stage in stages] == list(range(len(stages)))
    assert all(partition[a] <= partition[b] for a, b in view.atoms.edges)


def test_branches_work_side_by_side_where_memory_keeps_them_from_sharing_a_device() -> None:
    profile = branches(3, 4, parameter_bytes=10_000, saved_bytes=100)
    found = planned(Problem(profile, None, 4, 16, optimizer="none", microbatch_size=1, memory_limit_bytes=120_000))
    assert found.fits
    assert found.candidate.num_stages == 4
    assert [len({found.candidate.partition[b * 4 + i] for i in range(4)}) for b in range(3)] == [1, 1, 1]


def test_operators_that_pins_keep_apart_share_no_stage() -> None:
    pins = Pins((), (Group(("op0", "op9"), "pins"),))
    found = planned(Problem(branches(2, 4), None, 2, 16, microbatch_size=1, pins=pins))
    assert found.num_apart_violations == 0
    assert found.candidate.num_stages > 1


def test_stages_are_placed_as_they_are_listed_and_within_hosts() -> None:
    profile = branches(2, 4)
    cluster = Cluster(
        (DeviceType("cpu", 2**40, "cpu"),), (Host("cpu", 4, 2),),
        (LinkGroup("host", 4, 100.0, 500), LinkGroup("network", 0, 1.0, 5000)),
    )  # fmt: skip
    view = view_of(Problem(profile, cluster, 8, 16, microbatch_size=1))
    stages = [ProposedStage((i,), StageConfig(data=count)) for i, count in enumerate((3, 2, 1, 2))]
    assert [[place.ranks for place in places] for places in placings(view, stages)] == [
        [(0, 1, 2), (3, 4), (5,), (6, 7)],
        [(0, 1, 2), (4, 5), (3,), (6, 7)],
    ]


def test_the_evaluation_of_graphpipe_runs_in_small(tmp_path: Path) -> None:
    """Two branches on four devices, counted work: ours is never behind, and what is drawn is there."""
    question = evaluation.asked(60.0, deterministic_limit=0.0, microbatch_size=16, samples_a_device=1)
    found = list(evaluation.compared("case-study", "zoo:case-study:small", 4, ("ours", *evaluation.RIVALS), question))
    assert [row["planner"] for row in found] == ["ours", "pipedream", "piper", "alpa", "graphpipe"]
    ratios = [row["over_ours"] for row in found if "over_ours" in row]
    assert len(ratios) > 2
    assert min(ratios) == 1
    assert all(evaluation.text_of(row) for row in found)
    assert any("pipedream" in line for line in evaluation.summary(found))
    evaluation.draw(found, str(tmp_path / "evaluation.svg"))
    assert "case-study" in (tmp_path / "evaluation.svg").read_text()
