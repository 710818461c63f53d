"""What rivals are told of a problem at one micro-batch size: sums over atoms, one link, bytes that stages hold.

Their papers price a stage by sums over its operators, a message by its bytes over one bandwidth; so do these tables,
with our profile, strategies and cluster. Bytes that several atoms keep, receive or read count once a stage, as ours do.
Leaves out contention, host time, and what overlaps: the simulator, which judges all plans, knows them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from costmodel.errors import UsageError
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import largest
from planner.candidate.evaluate import Evaluator
from planner.graph.atoms import Atoms
from planner.graph.thinning import thin
from planner.search.published.pieces import Floats, Pieces
from planner.search.solvers.relaxation.data import Held
from planner.search.solvers.relaxation.memory import held, unit_bytes
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem

LARGE = 1 << 30
"""Bytes by which the rate of a link is told."""


@dataclass(frozen=True, eq=False)
class View:
    """A problem at one micro-batch size."""

    prepared: PreparedProblem
    microbatch_size: int

    @property
    def atoms(self) -> Atoms:
        """What stages are made of."""
        return self.prepared.atoms

    @property
    def evaluator(self) -> Evaluator:
        """Simulates what is proposed."""
        return self.prepared.evaluator(self.microbatch_size)

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step, on all replicas together."""
        return self.evaluator.num_microbatches

    @property
    def num_devices(self) -> int:
        """Devices to be used at most."""
        return self.prepared.problem.num_devices

    @cached_property
    def link(self) -> tuple[float, float]:
        """Latency in ns and ns a byte of the slowest link between the devices."""
        machines, last = self.prepared.problem.machines, self.num_devices - 1
        ends = [(i, j) for i, j in self.prepared.problem.pairs_alike] or [(0, last)]
        slow_ns = [(machines.p2p_ns(i, j, LARGE), machines.p2p_ns(i, j, 1)) for i, j in ends]
        whole, start = max(slow_ns)
        return float(start), (whole - start) / LARGE

    def message_ns(self, size_bytes: Floats) -> Floats:
        """Return the time of messages on that link, by their bytes."""
        latency, each = self.link
        found: Floats = (size_bytes > 0) * latency + size_bytes * each
        return found

    def joined(self, most: int) -> list[list[int]]:
        """Return groups of atoms in a topological order: atoms joined along an order until few enough are left."""
        atoms, measured = self.atoms, self.prepared.problem.measured(self.microbatch_size)
        each_ns = list(
            map(sum, zip(measured.forward_ns, measured.backward_input_ns, measured.backward_weight_ns, strict=True))
        )
        works_ns = [sum(each_ns[i] for i in row) for row in atoms.members]
        sizes = [measured.tensor_bytes(tensor) for tensor in atoms.graph.tensors]
        thinned = thin(atoms, works_ns, sizes, most, self.evaluator.apart)
        return [sorted({atoms.atom_of[i] for i in row}) for row in thinned.members]

    @property
    def replicas(self) -> list[int]:
        """Numbers of replicas that a stage may have: any that each get a micro-batch, or the one that is fixed.

        States are sharded over several.
        """
        space = self.prepared.problem.space
        least = 2 if space.zero else 1
        return [space.data] if space.data else list(range(least, min(self.num_devices, self.num_microbatches) + 1))

    def configs(self, *free: str) -> Iterator[StageConfig]:
        """Yield configurations of one replica: what is named free and not fixed varies, the rest is as usual."""
        found: dict[StageConfig, None] = {}
        for family in self.prepared.families.all:
            usual = replace(family.config, data=1, zero=0)
            plain = {"tensor": 1, "sequence": 1, "context": 1, "expert": 1, "recompute": "none", "offload": "none"}
            space = self.prepared.problem.space
            closed = {n: v for n, v in plain.items() if n not in free and getattr(space, n, None) is None}
            alike = space.expert_tensor is not None or usual.expert_tensor == usual.tensor
            if alike and all(getattr(usual, name) == value for name, value in closed.items()):
                found[usual] = None
        yield from found


ALONE = StageConfig()


@dataclass(frozen=True, eq=False)
class Holdings:
    """Bytes that pieces hold where nothing is divided: what several atoms read or keep counts once a piece."""

    view: View
    pieces: Pieces
    _borders: dict[tuple[int, ...], tuple[Floats, Floats]] = field(default_factory=dict)

    def borders(self, sizes: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return what pieces get and send where tensors have these sizes."""
        if sizes not in self._borders:
            self._borders[sizes] = self.pieces.received(self.view.atoms.flows, sizes)
        return self._borders[sizes]

    @cached_property
    def states_bytes(self) -> Floats:
        """Parameters, gradients and states of the optimizer."""
        return self._sum(in_flight=False)

    @cached_property
    def kept_bytes(self) -> Floats:
        """What a micro-batch in flight keeps."""
        return self._sum(in_flight=True)

    @cached_property
    def _all(self) -> tuple[Held, ...]:
        return held(self._cuts)

    @property
    def _cuts(self) -> FamilyPartitions:
        return self.view.prepared.cuts(Family(ALONE, self.view.microbatch_size))

    def _sum(self, *, in_flight: bool) -> Floats:
        found, unit = np.zeros((len(self.pieces), len(self.pieces))), unit_bytes(self._cuts)
        for each in self._all:
            if each.in_flight == in_flight:
                keeps = self.pieces.holds(each.atoms)
                if each.readers:
                    keeps |= self.pieces.holds(each.readers) & ~self.pieces.holds((each.producer,))
                found += each.size * unit * keeps
        return found


@dataclass(frozen=True, eq=False)
class Ways:
    """The ways to run pieces with one configuration and any number of replicas.

    Attributes
    ----------
    view : View
    pieces : Pieces
    config : StageConfig
        Of one replica.
    zero : int
        With several replicas.
    holdings : Holdings
        What the pieces hold undivided.
    """

    view: View
    pieces: Pieces
    config: StageConfig
    zero: int
    holdings: "Holdings"

    def on(self, replicas: int) -> StageConfig:
        """Return the configuration of a stage with a number of replicas."""
        return replace(self.config, data=replicas, zero=self.zero if replicas > 1 else 0)

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.config.tensor * self.config.context

    def _cuts(self, replicas: int) -> FamilyPartitions:
        return self.view.prepared.cuts(Family(self.on(replicas), self.view.microbatch_size))

    @cached_property
    def works_ns(self) -> tuple[float, ...]:
        """What each atom takes of one micro-batch on one replica, a forward that is run again included."""
        cuts = self._cuts(1)
        if self.config.recompute != "full":
            return cuts.paces_ns
        again = self._forward_share
        return tuple(pace + work * part for pace, work, part in zip(cuts.paces_ns, cuts.works_ns, again, strict=True))

    @property
    def _forward_share(self) -> list[float]:
        """Part of each atom's work that its forward is, as profiled."""
        measured = self.view.prepared.problem.measured(self.view.microbatch_size)
        rows = zip(measured.forward_ns, measured.backward_input_ns, measured.backward_weight_ns, strict=True)
        times = [(there, there + back + weights) for there, back, weights in rows]
        sums = [tuple(map(sum, zip(*(times[i] for i in row), strict=True))) for row in self.view.atoms.members]
        return [there / whole if whole else 0.0 for there, whole in sums]

    @cached_property
    def work_ns(self) -> Floats:
        """What each piece takes of one micro-batch on one replica."""
        return self.pieces.sums(self.works_ns)

    @cached_property
    def _borders(self) -> tuple[Floats, Floats]:
        atoms, pricer = self.view.atoms, self.view.evaluator.pricer
        sizes = [0] * len(atoms.graph.tensors)
        for flow in atoms.flows:
            sizes[flow.tensor] = pricer.message_bytes([flow.tensor], self.config, 1)
        return self.holdings.borders(tuple(sizes))

    @property
    def received_bytes(self) -> Floats:
        """What each piece gets for one micro-batch."""
        return self._borders[0]

    @property
    def sent_bytes(self) -> Floats:
        """What each piece sends for one micro-batch."""
        return self._borders[1]

    def own_ns(self, replicas: int) -> Floats:
        """Return what each piece takes for each micro-batch of the job, its part of what is done once a step with it.

        Sums of gradients and the optimizer's step count by bytes of parameters, and so does what ZeRO-2 and 3 add to
        each micro-batch.
        """
        once_ns = self.pieces.sums(self._cuts(replicas).closing_ns) / self.view.num_microbatches
        sizes = self.view.atoms.trained_bytes
        sharding_ns = self._sharding_ns(replicas) / max(1, sum(sizes))
        each_ns = self.pieces.sums([sharding_ns * size for size in sizes])
        found: Floats = (self.work_ns + each_ns) / replicas + once_ns
        return found

    def _sharding_ns(self, replicas: int) -> int:
        """Return what the whole model's micro-batch takes longer because parameters or gradients are sharded."""
        config = self.on(replicas)
        if config.zero < 2:
            return 0
        model = self.view.prepared.families.models(self.view.microbatch_size)[0]
        operators = range(len(self.view.atoms.graph.operators))
        ranks = tuple(range(replicas * self.devices))
        costs = [model.stage(operators, each, ranks) for each in (config, replace(config, zero=0))]
        sharded, whole = (
            largest(c.forward_ns) + largest(c.backward_input_ns) + largest(c.backward_weight_ns) for c in costs
        )
        return sharded - whole

    def static_bytes(self, replicas: int) -> Floats:
        """Return what each piece holds on one rank whatever is in flight: states, and what it works on again."""
        families, size = self.view.prepared.families, self.view.microbatch_size
        part = families.states_bytes(Family(self.on(replicas), size)) / max(
            1, families.states_bytes(Family(ALONE, size))
        )
        found = self.holdings.states_bytes * part
        return found + self._kept if self.config.recompute == "full" else found

    @property
    def activation_bytes(self) -> Floats:
        """What each piece keeps of one micro-batch in flight on one rank."""
        return self.received_bytes if self.config.recompute == "full" else self._kept

    @property
    def _kept(self) -> Floats:
        return self.holdings.kept_bytes / self.config.tensor


def ways_of(view: View, pieces: Pieces, *free: str) -> list[Ways]:
    """Return the ways to run pieces, one for each configuration by which the model can be divided.

    What is named in `free` and not fixed varies; recompute between none and all of it.

    Raises
    ------
    UsageError
        When there is none.
    """
    families, fixed = view.prepared.families, view.prepared.problem.space.zero
    zeros = sorted({family.config.zero for family in families.all}) if "zero" in free else [fixed or 0]
    remade = (view.prepared.problem.space.recompute,) if view.prepared.problem.space.recompute else ("none", "full")
    configs = [config for config in view.configs(*free) if config.recompute in remade]
    configs = [each for each in configs if families.least_work_ns(Family(each, view.microbatch_size)) is not None]
    if not configs:
        fixed_text = ", ".join(f"{name} {value}" for name, value in view.prepared.problem.space.to_json().items())
        why = str(families.dropped.refused or families.not_run) or "it knows replicas and tensor parallelism alone"
        raise UsageError(f"no stage of {view.atoms.graph.name} can be run with {fixed_text or 'what is open'}: {why}")
    holdings = Holdings(view, pieces)
    return [Ways(view, pieces, config, zero, holdings) for config in configs for zero in zeros]
