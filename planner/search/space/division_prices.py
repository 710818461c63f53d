"""What a model takes and holds along its line of atoms, for every way to divide operators and every micro-batch size.

Prices are those of `StrategyModel`, asked for one piece of each kind (`quotient`), so that a division costs the same
whatever the model's depth. What is kept is priced at the smallest micro-batch size and counts in proportion. On unlike
devices the slowest type counts. Leaves out what replicas send, and stages: sums over a stage are differences of prefix
sums here, which count once for each stage what several of its operators share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from math import lcm
from typing import NamedTuple

import numpy as np

from costmodel.machines.cluster_parts import DeviceType
from costmodel.stages.config import RECOMPUTE, StageConfig
from costmodel.stages.strategies import StrategyModel
from costmodel.stages.strategies.amount_rows import ActionAmounts, HeldAmounts
from costmodel.stages.strategies.quotient import Quotient, quotient_of
from planner.candidate.make import version
from planner.graph.atoms import Atoms
from planner.plan.rank_order import first_ranks
from planner.question.problem import Problem
from planner.search.space import sums_cache
from planner.search.space.even_stages import Floats, Ints


class OperatorDegrees(NamedTuple):
    """How the operators of a stage are divided among its ranks."""

    tensor: int = 1
    sequence: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1


@dataclass(frozen=True)
class LinePrices:
    """Prefix sums along the line, one row a division and micro-batch size, ns and bytes of one action on one rank.

    Attributes
    ----------
    forward, backward, added : array
        F; I and W; adding up gradients.
    again, kept : array
        Forwards that run again, and what is kept of one micro-batch; the first axis is `RECOMPUTE`.
    host_forward, host_backward, host_again : array
        What the host takes to dispatch these; `host_again` as `again`.
    weights, experts, trained, trained_experts : array
        Parameters, and those of them that get a gradient, before ZeRO divides any.
    peak : array
        The most that recompute makes again at once; the first axis is `RECOMPUTE`.
    unit, workspace : array
        Weights of the largest block, and what a micro-batch works with.
    crossing : array
        Bytes of a micro-batch of the smallest size that cross each position of the line whole, one way.
    message : array
        The part of that which one rank of a division sends.
    """

    forward: Floats
    backward: Floats
    added: Floats
    again: Floats
    host_forward: Floats
    host_backward: Floats
    host_again: Floats
    kept: Floats
    weights: Floats
    experts: Floats
    trained: Floats
    trained_experts: Floats
    peak: Floats
    unit: Floats
    workspace: Floats
    crossing: Floats
    message: Floats


class DivisionPrices:
    """The prices of one problem's line of atoms, remembered by division.

    Parameters
    ----------
    problem : Problem
    atoms : Atoms
    order : sequence of int
        The atoms along the line.
    """

    def __init__(self, problem: Problem, atoms: Atoms, order: Sequence[int]) -> None:
        self._problem, self._atoms, self._order = problem, atoms, np.array(order)
        self._actions: dict[tuple[OperatorDegrees, int], ActionAmounts] = {}
        self._held: dict[tuple[OperatorDegrees, str], HeldAmounts] = {}
        self._models: dict[int, StrategyModel] = {}
        self._place = np.empty(len(order), dtype=np.int64)
        self._place[self._order] = np.arange(len(order))
        self._item = self._place[np.array(atoms.atom_of)]

    @cached_property
    def device(self) -> DeviceType:
        """The type of device on which the model takes longest."""
        problem = self._problem
        names = set(problem.device_names)
        kinds = [device for device in problem.machines.devices if device.name in names]
        return max(kinds, key=lambda kind: sum(sum(times.forward_ns) for times in problem.profile_on(kind).times))

    @cached_property
    def _quotient(self) -> Quotient:
        return quotient_of(self._problem.profile_on(self.device))

    @cached_property
    def _standing_for(self) -> Ints:
        return np.array(self._quotient.standing_for)

    @cached_property
    def smallest(self) -> int:
        """The smallest micro-batch size, at which what is kept is priced."""
        return min(self._problem.microbatch_sizes)

    def _model(self, size: int) -> StrategyModel:
        if size not in self._models:
            problem = self._problem
            self._models[size] = StrategyModel(self._quotient.profile, problem.machines, size, problem.training)
        return self._models[size]

    def actions(self, division: OperatorDegrees, size: int) -> ActionAmounts:
        """Return what each operator of the pieces takes of a micro-batch.

        Raises
        ------
        UsageError
            When an operator cannot be divided so.
        """
        if (division, size) not in self._actions:
            self._actions[division, size] = self._model(size).action_amounts(*self._placed(division, "none"))
        return self._actions[division, size]

    def held(self, division: OperatorDegrees, recompute: str) -> HeldAmounts:
        """Return what each operator of the pieces holds, of one micro-batch of the smallest size."""
        if (division, recompute) not in self._held:
            found = self._model(self.smallest).held_amounts(*self._placed(division, recompute))
            self._held[division, recompute] = found
        return self._held[division, recompute]

    def along(self, rows: Sequence[tuple[OperatorDegrees, int]]) -> LinePrices:
        """Return prefix sums for each division and micro-batch size, as an earlier command kept them or anew.

        Raises
        ------
        UsageError
            When an operator cannot be divided so.
        """
        key = self._key(rows)
        known = sums_cache.load(key)
        try:
            return LinePrices(**known) if known else self._kept(key, self._priced(rows))
        except TypeError:  # other names: of another version
            return self._kept(key, self._priced(rows))

    @staticmethod
    def _kept(key: str, found: LinePrices) -> LinePrices:
        sums_cache.save(key, {field.name: getattr(found, field.name) for field in fields(found)})
        return found

    def _key(self, rows: Sequence[tuple[OperatorDegrees, int]]) -> str:
        """Return a digest of all that the sums depend on."""
        problem, profile = self._problem, self._quotient.profile
        graph = profile.graph
        content = (
            version(),
            (graph.operators, graph.tensors, graph.parameters, profile.times, profile.whole, profile.accumulate_of),
            (profile.device, profile.dtype, profile.shards, self._quotient.standing_for, problem.calibration.digest),
            (problem.machines, problem.training, self._order.tolist(), self._atoms.members, self._crossing.tolist()),
            (self.smallest, list(rows), problem.space.ranks),
        )
        return sha256(repr(content).encode()).hexdigest()

    def _priced(self, rows: Sequence[tuple[OperatorDegrees, int]]) -> LinePrices:
        timed = [self.actions(*row) for row in rows]
        divisions = list(dict.fromkeys(division for division, _ in rows))
        number = {division: i for i, division in enumerate(divisions)}
        of = np.array([number[division] for division, _ in rows])
        plain = [self.held(division, "none") for division in divisions]
        ways = [[self.held(division, name) for division in divisions] for name in self._recomputes]
        scale = np.array([[size / self.smallest] for _, size in rows])
        parts = np.array([d.context * (d.tensor if d.sequence > 1 else 1) for d, _ in rows])
        forward, dispatched = [one.forward for one in timed], [one.dispatched for one in timed]
        runs = [[row[i].again for i in of.tolist()] for row in ways]
        return LinePrices(
            forward=self._sums(forward),
            backward=self._sums(one.backward for one in timed),
            added=self._sums(one.added for one in timed),
            again=np.array([self._again(forward, row) for row in runs]),
            host_forward=self._sums(dispatched),
            host_backward=self._sums(one.dispatched_backward for one in timed),
            host_again=np.array([self._again(dispatched, row) for row in runs]),
            kept=np.array([self._sums(each.kept for each in row)[of] * scale for row in ways]),
            weights=self._sums(one.weights[0] for one in plain)[of],
            experts=self._sums(one.weights[1] for one in plain)[of],
            trained=self._sums(one.trained[0] for one in plain)[of],
            trained_experts=self._sums(one.trained[1] for one in plain)[of],
            peak=np.array([[each.remade_peak for each in row] for row in ways])[:, of] * scale[:, 0],
            unit=np.array([float(one.largest_unit) for one in plain])[of],
            workspace=np.array([float(one.workspace) for one in plain])[of] * scale[:, 0],
            crossing=self._crossing,
            message=scale[:, 0] / parts,
        )

    @cached_property
    def _recomputes(self) -> list[str]:
        """Ways to recompute, none in place of one that frees nothing, as selective does under flash attention."""
        plain = sum(self.held(OperatorDegrees(), "none").kept)
        return [name if sum(self.held(OperatorDegrees(), name).kept) < plain else "none" for name in RECOMPUTE]

    @property
    def freeing(self) -> tuple[bool, ...]:
        """Whether each way to recompute frees anything; none does not count."""
        return tuple(name != "none" for name in self._recomputes)

    def _again(self, forward: Sequence[Sequence[int]], runs: Sequence[Sequence[bool]]) -> Floats:
        """Return the forwards of operators that run again."""
        pairs = zip(forward, runs, strict=True)
        return self._sums([ns * again for ns, again in zip(*pair, strict=True)] for pair in pairs)

    def _sums(self, rows: Iterable[Sequence[int]]) -> Floats:
        """Return prefix sums along the line of what the pieces' operators have."""
        found = [
            np.bincount(self._item, np.array(row, dtype=np.float64)[self._standing_for], len(self._order))
            for row in rows
        ]
        table = np.zeros((len(found), len(self._order) + 1))
        np.cumsum(np.array(found), axis=1, out=table[:, 1:])
        return table

    @cached_property
    def _crossing(self) -> Floats:
        """Bytes of the whole tensors that cross each position of the line, at the smallest micro-batch size."""
        model = self._problem.stage_model(self.device, self.smallest)
        sizes = model.tensor_bytes(StageConfig())
        found = np.zeros(len(self._order) + 1)
        for flow in self._atoms.flows:
            ends = [int(self._place[atom]) for atom in flow.consumers]
            found[int(self._place[flow.producer]) + 1 : max(ends) + 1] += sizes[flow.tensor]
        return found

    def _placed(self, division: OperatorDegrees, recompute: str) -> tuple[StageConfig, tuple[int, ...]]:
        """Return a division on as few ranks as it needs."""
        block = division.tensor * division.context
        num_ranks = lcm(block, division.expert * division.expert_tensor)
        config = StageConfig(num_ranks // block, *division[:-1], expert_tensor=division.expert_tensor)
        return replace(config, recompute=recompute), first_ranks(config, 1, self._problem.space.ranks)
