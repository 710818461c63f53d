"""GraphPipe (Jeon et al., ASPLOS 2025): a graph of stages from a series-parallel tree, branches working side by side.

Modelled: the model as a tree (`planner.search.published.series_parallel`, which says what becomes of graphs that are
none) of all its atoms, none joined; the slowest stage fastest (`planner.search.published.graph_stages`); replicas and
micro-batches an action of each stage its own; memory with the micro-batches in flight that 1F1B on the graph of
stages keeps. For each micro-batch a stage takes its operators' time and its messages', forward and backward, divided
by its replicas (as micro-batches do, which stay whole), and its part of the sum of its gradients. Several
micro-batches an action take what that micro-batch size takes, where it was measured. Left out: filling and draining
the pipeline; devices from which the slowest stage gains nothing stay idle; tensor parallelism and recompute are as
flags fix them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.graph.atoms import Atoms
from planner.search.budget import Deadline
from planner.search.published.graph_stages import Choices, GraphStages
from planner.search.published.pieces import Bools, Pieces
from planner.search.published.prices import View, Ways, ways_of
from planner.search.published.proposals import ProposedStage
from planner.search.published.series_parallel import TreePart, decompose
from planner.search.published.stretches import Allowance, Choice
from simulator.schedules import SCHEDULES

MULTIPLES = (1, 2, 4)
"""Micro-batches an action that are tried."""


def propose(view: View, memory_bytes: float, limits: Deadline) -> Sequence[ProposedStage] | None:
    """Return the stages whose slowest is fastest.

    Where all of them would take several micro-batches an action, a larger micro-batch size proposes the same: then each
    takes one.
    """
    tables = _tables(view)
    if not tables.replicas:
        return None
    allowance = Allowance(view.num_devices, memory_bytes, tables.replicas)
    found = _best(view, tables, allowance, limits)
    if found and min(stage.multiple for stage in found) > 1:
        found = _best(view, tables.singly, allowance, limits) or found
    return found


def _best(view: View, tables: "_Tables", allowance: Allowance, limits: Deadline) -> Sequence[ProposedStage] | None:
    works_ns = [min(each) for each in zip(*map(_works_ns, tables.ways), strict=True)]
    search = GraphStages(tables.root, tables.choices, works_ns, allowance, view.num_microbatches, limits)
    found = search.best()
    if found is None:
        return None
    ways = [(tables.ways[stage.way], stage) for stage in found.stages]
    return [ProposedStage(stage.atoms, way.ways.on(stage.replicas), way.multiple) for way, stage in ways]


@dataclass(frozen=True, slots=True)
class _Way:
    """Ways to run pieces at the micro-batch size of an action, by its number of micro-batches."""

    ways: Ways
    multiple: int


@dataclass(frozen=True, slots=True)
class _Tables:
    """What stages take, which does not depend on the memory."""

    root: TreePart
    ways: Sequence[_Way]
    replicas: Sequence[int]
    choices: Choices

    @property
    def singly(self) -> "_Tables":
        """Those of one micro-batch an action."""
        kept = [place for place, way in enumerate(self.ways) if way.multiple == 1]
        choices = {atoms: [row[place] for place in kept] for atoms, row in self.choices.items()}
        return _Tables(self.root, [self.ways[place] for place in kept], self.replicas, choices)


@lru_cache(maxsize=1)
def _tables(view: View) -> _Tables:
    """Return the tables of a view; those of the last one are kept, for it is asked again with less memory."""
    root = decompose(view.atoms.successors, view.prepared.orders[0])
    parts = list(root.divisible)
    pieces = Pieces(np.concatenate([_downsets(view.atoms, part) for part in parts]))
    ways = list(_ways(view, pieces))
    devices = max((way.ways.devices for way in ways), default=view.num_devices + 1)
    replicas = [count for count in view.replicas if count * devices <= view.num_devices]
    rows = [_choices(view, each, replicas, parts) for each in ways]
    choices = {part.atoms: [row[place] for row in rows] for place, part in enumerate(parts)}
    return _Tables(root, ways, replicas, choices)


def _downsets(atoms: Atoms, part: TreePart) -> Bools:
    """Return the downsets between neighbouring children of a part: what leads to the part, and its first children."""
    before = 0
    for atom in part.atoms:
        before |= atoms.ancestors[atom]
    for atom in part.atoms:
        before &= ~(1 << atom)
    members = np.zeros((len(part.children) + 1, len(atoms)), np.bool_)
    members[:] = [before >> atom & 1 for atom in range(len(atoms))]
    for place, child in enumerate(part.children):
        members[place + 1 :, list(child.atoms)] = True
    return members


def _ways(view: View, pieces: Pieces) -> Iterator[_Way]:
    """Yield the ways to run pieces, with each number of micro-batches an action that some schedule runs."""
    problem = view.prepared.problem
    largest = problem.profile.microbatch_sizes[-1]
    differ = any(SCHEDULES[name].placement == "graph" for name in problem.schedules)
    for multiple in MULTIPLES if differ else (1,):
        size = multiple * view.microbatch_size
        if multiple == 1 or (size <= largest and view.num_microbatches % multiple == 0):
            yield from (_Way(each, multiple) for each in ways_of(View(view.prepared, size), pieces))


def _works_ns(way: _Way) -> list[float]:
    """Return what each atom takes of a micro-batch, times its devices."""
    return [work * way.ways.devices / way.multiple for work in way.ways.works_ns]


def _choices(view: View, way: _Way, replicas: Sequence[int], parts: Sequence[TreePart]) -> list[Choice]:
    """Return the stages of each part that are run one way."""
    ways, pieces = way.ways, way.ways.pieces
    allowed = pieces.inside & ~pieces.mixes(view.evaluator.apart)
    messages = 2 * (ways.view.message_ns(ways.received_bytes) + ways.view.message_ns(ways.sent_bytes))
    times, static = [], []
    for count in replicas:
        few = allowed & (count * way.multiple <= view.num_microbatches)
        share = -(-ways.view.num_microbatches // count) / ways.view.num_microbatches
        own_ns = ways.own_ns(count) + ways.work_ns * (share - 1 / count) + messages * share
        times.append(np.where(few, own_ns / way.multiple, np.inf))
        static.append(ways.static_bytes(count))
    found, start = [], 0
    for part in parts:
        own = slice(start, start := start + len(part.children) + 1)
        time_ns, static_bytes = (np.array([table[own, own] for table in tables]) for tables in (times, static))
        found.append(Choice(ways.devices, way.multiple, time_ns, static_bytes, ways.activation_bytes[own, own]))
    return found
