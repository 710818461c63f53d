"""Candidates are ranked by what the simulator says of them, never by an estimate.

Prices a partition, orders its micro-batches with a schedule, closes the step and times it. Candidates
over the memory limit rank behind all that fit, by how much they are over. Leaves out which partitions
are worth trying.
"""

from dataclasses import dataclass
from functools import cached_property

from planner.pins import Apart
from planner.prepare import Atoms
from planner.pricing import Layout, Partition, Pricing
from planner.problem import Problem
from simulator.engine import Structure, Times
from simulator.lowering import close_step
from simulator.schedule import Schedule, stage_graph
from simulator.schedules import build_schedule
from simulator.schedules.warmup import graph_in_flight

LINE = "chain"
GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition with what the simulator says of it.

    Attributes
    ----------
    partition : Partition
    shape : str
        ``graph``: tensors go straight to their readers; ``chain``: stages in one line that relay them.
    schedule : str
    microbatch_size : int
    step_time_ns : int
    excess_bytes : int
        By how much the worst rank is over its memory limit; 0 when all fit.
    num_mixed : int
        Atoms that share a stage with some that pins keep apart from them; 0 when all pins are kept.
    """

    partition: Partition
    shape: str
    schedule: str
    microbatch_size: int
    step_time_ns: int
    excess_bytes: int
    num_mixed: int = 0

    @property
    def num_stages(self) -> int:
        """How many stages it has."""
        return max(self.partition) + 1

    @property
    def fits(self) -> bool:
        """Whether every rank is within its memory limit, and what pins keep apart is."""
        return self.excess_bytes == 0 and self.num_mixed == 0

    @property
    def rank(self) -> tuple[int, int, int, int, Partition]:
        """Smaller is better: what keeps to pins, what fits, then what is fast, then what has fewer stages."""
        return self.num_mixed, self.excess_bytes, self.step_time_ns, self.num_stages, self.partition


@dataclass(frozen=True, slots=True)
class Simulated:
    """A priced partition with its closed schedule and times."""

    layout: Layout
    schedule: Schedule
    times: Times


class Evaluator:
    """Simulates partitions of one set of atoms at one micro-batch size."""

    def __init__(self, problem: Problem, atoms: Atoms, microbatch_size: int) -> None:
        self.problem, self.atoms, self.microbatch_size = problem, atoms, microbatch_size
        self.num_microbatches = problem.global_batch // microbatch_size
        self.pricing = Pricing(problem.cost_model(microbatch_size), atoms)
        self._structures: dict[tuple[object, ...], Structure] = {}
        self._known: dict[tuple[Partition, str, str], Candidate] = {}

    @cached_property
    def work_ns(self) -> tuple[int, ...]:
        """Forward and backward of each atom."""
        model = self.pricing.model
        each = [
            sum(row) for row in zip(model.forward_ns, model.backward_input_ns, model.backward_weight_ns, strict=True)
        ]
        return tuple(sum(each[operator] for operator in members) for members in self.atoms.members)

    def evaluate(self, partition: Partition, schedule: str = "", shape: str = GRAPH) -> Candidate:
        """Return the candidate of a partition; the first schedule of the problem by default."""
        name = schedule or self.problem.schedules[0]
        key = (partition, name, shape)
        if key not in self._known:
            found = self.simulate(partition, name, shape)
            excess = self._excess_bytes(found) if self.memory_can_bind else 0
            step_time_ns = found.times.step_time_ns
            mixed = self._num_mixed(partition)
            self._known[key] = Candidate(partition, shape, name, self.microbatch_size, step_time_ns, excess, mixed)
        return self._known[key]

    @cached_property
    def apart(self) -> Apart:
        """Atoms that pins keep apart."""
        pins = self.problem.pins
        return pins.kept_apart(self.atoms.graph, self.atoms.atom_of) if pins else ()

    def _num_mixed(self, partition: Partition) -> int:
        """Return how many atoms would have to leave their stages, all but those of one pattern in each."""
        mixed = 0
        for patterns in self.apart:
            held: dict[int, list[int]] = {}
            for number, row in enumerate(patterns):
                for atom in row:
                    held.setdefault(partition[atom], [0] * len(patterns))[number] += 1
            mixed += sum(sum(counts) - max(counts) for counts in held.values())
        return mixed

    def _excess_bytes(self, found: "Simulated") -> int:
        limits = self.problem.memory_limits_bytes
        return max(0, *(p - limits[r] for r, p in enumerate(found.times.peak_memory_bytes) if limits[r]), 0)

    @cached_property
    def memory_can_bind(self) -> bool:
        """Whether a rank could be over its limit with the whole model and all micro-batches in flight.

        Messages are held at both ends: each tensor counts twice more for a micro-batch.
        """
        limits = [limit for limit in self.problem.memory_limits_bytes if limit]
        if not limits:
            return False
        whole = self.pricing.graph((0,) * len(self.atoms)).costs.stages[0]
        kept = whole.activation_bytes if isinstance(whole.activation_bytes, int) else max(whole.activation_bytes)
        model = self.pricing.model
        flowing = 3 * sum(model.tensor_bytes(model.profile.graph.tensors[flow.tensor]) for flow in self.atoms.flows)
        return whole.static_bytes + self.num_microbatches * (kept + flowing) > min(limits)

    def best_of(self, partition: Partition) -> Candidate:
        """Return the best of the problem's schedules for a partition."""
        return min((self.evaluate(partition, name) for name in self.problem.schedules), key=lambda c: c.rank)

    def simulate(self, partition: Partition, schedule: str, shape: str) -> Simulated:
        """Price, order, close and time a partition."""
        layout = self.pricing.graph(partition) if shape == GRAPH else self.pricing.chain(partition)
        costs = layout.costs
        edges = tuple((e.source, e.target, e.gradient) for e in costs.edges)
        reduces = layout.reduces
        backward = tuple(stage.backward for stage in costs.stages)
        key: tuple[object, ...] = (schedule, edges, reduces, backward)
        if schedule == EAGER:
            key += graph_in_flight(costs, stage_graph(costs), self.num_microbatches, latency=True)
        if key not in self._structures:
            order = build_schedule(schedule, costs, self.num_microbatches)
            closed = close_step(order, reduces, self.problem.optimizer != "none")
            self._structures[key] = Structure(closed)
        structure = self._structures[key]
        speeds = self.problem.speeds[: len(costs.stages)]
        return Simulated(layout, structure.schedule, structure.times(costs, speeds))


EAGER = "graph-eager-1f1b"
"""The one schedule here whose orders do not follow from the stage graph alone."""
