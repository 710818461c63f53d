"""Candidates are ranked by what the simulator says of them, never by an estimate.

A candidate is priced, its micro-batches ordered, the step closed and timed. Where all replicas do the same, the first
represents all of them. Leaves out which candidates are worth trying.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from costmodel.stages.costs import PER_ACTION, Costs
from planner.candidate.candidate import IN_FLIGHT, Candidate, StagePlacement, replicated_alike
from planner.candidate.fit import excess_bytes, limits_of, num_apart_violations
from planner.candidate.host_room import check_host_room
from planner.candidate.known_orders import INTERLEAVED, KnownOrders, is_fixed
from planner.candidate.price import Priced, Pricer
from planner.candidate.steady import num_closing, regime
from planner.graph.atoms import Apart, Atoms
from planner.graph.layers import why_undivided
from planner.plan.gathering import why_out_of_step
from planner.plan.lockstep import Block
from planner.plan.rung import strategy_of
from planner.question.problem import Problem
from simulator.bounds import lower_bound_ns
from simulator.engine import Times
from simulator.schedule import stage_graph
from simulator.schedules.warmup import graph_in_flight, raised_in_flight

TIMED_S = 6e-6
"""CPU seconds, about, of an action that is timed."""
FEWEST_A_RANK = 3
"""Micro-batches of a replica for each rank with which a pace is first looked for."""


@dataclass(frozen=True, slots=True)
class Run:
    """A priced candidate with its closed schedule and times.

    Attributes
    ----------
    priced : Priced
        With the costs that the simulated ranks have: all blocks, or the first of each `replicas`.
    times : Times
    replicas : int
        How many replicas one simulated rank represents.
    left : int
        Micro-batches of a replica that were not simulated, because the pipeline repeats itself.
    left_ns : int
        What the step takes longer for these.
    """

    priced: Priced
    times: Times
    replicas: int
    left: int = 0
    left_ns: int = 0

    @property
    def step_time_ns(self) -> int:
        """The step, with what was not simulated."""
        return self.times.step_time_ns + self.left_ns

    @property
    def num_actions(self) -> int:
        """Actions of the ranks once they are lowered: a message is sent and received."""
        closing, count = num_closing(self.times), self.times.structure.schedule.num_microbatches
        return closing + (self._num_simulated - closing) // count * (count + self.left)

    @property
    def _num_simulated(self) -> int:
        schedule = self.times.structure.schedule
        graph, count = schedule.graph, schedule.num_microbatches
        messages = sum(
            (1 + edge.gradient) * (count // min(graph.multiples[edge.source], graph.multiples[edge.target]))
            for edge in graph.edges
            if graph.ranks[edge.source] != graph.ranks[edge.target]
        )
        return sum(map(len, schedule.orders)) + 2 * messages

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The first ranks that each simulated one represents."""
        return self.priced.blocks[:: self.replicas]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A candidate with what the simulator says of it.

    Attributes
    ----------
    candidate : Candidate
    step_time_ns : int
    excess_bytes : int
        By how much the worst rank is over its memory limit; 0 when all fit.
    num_apart_violations : int
        Atoms that share a stage with some that pins keep apart from them; 0 when all pins are kept.
    is_line : bool
        Whether each stage feeds the next and no other.
    num_actions : int
        Of the plan, messages too; where replicas do the same, of one of them.
    copies : int
        How many replicas do the same.
    not_divided : str
        Why the executor cannot divide its stages as they are cut and replicated; empty where it can.
    spare_bytes : int
        What the rank that has least left has left by the estimate; negative where it is over its limit.
    """

    candidate: Candidate
    step_time_ns: int
    excess_bytes: int
    num_apart_violations: int = 0
    is_line: bool = True
    num_actions: int = 0
    copies: int = 1
    not_divided: str = ""
    spare_bytes: int = 0

    @property
    def strategy(self) -> str:
        """The rungs of the ladder that it belongs to."""
        return strategy_of([place.config for place in self.candidate.places], self.is_line)

    @property
    def fits(self) -> bool:
        """Whether every rank is within its memory limit, and what pins keep apart is."""
        return self.excess_bytes == 0 and self.num_apart_violations == 0

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Smaller is better: what keeps to pins, what fits, then what is fast, then what has fewer stages."""
        found = self.candidate
        return self.num_apart_violations, self.excess_bytes, self.step_time_ns, found.num_stages, found.partition


class Evaluator:
    """Simulates candidates of one set of atoms at one micro-batch size."""

    def __init__(self, problem: Problem, atoms: Atoms, microbatch_size: int) -> None:
        self.problem, self.atoms, self.microbatch_size = problem, atoms, microbatch_size
        self.pricer = Pricer(problem, atoms, microbatch_size)
        self._known: dict[Candidate, Evaluated] = {}
        self._limits: dict[tuple[Block, ...], tuple[int, ...]] = {}
        self.orders = KnownOrders(problem, microbatch_size)
        self._timed_s = 0.0

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step, on all replicas together."""
        return self.pricer.num_microbatches

    @cached_property
    def apart(self) -> Apart:
        """Atoms that pins keep apart."""
        pins = self.problem.pins
        return pins.kept_apart(self.atoms.graph, self.atoms.atom_of) if pins else ()

    @property
    def work_s(self) -> float:
        """CPU seconds about of what was simulated so far, counted by actions: the same on any machine."""
        return self._timed_s + self.orders.work_s

    def evaluate(self, candidate: Candidate) -> Evaluated:
        """Simulate a candidate, once; where its numbers in flight are open, with those of `EAGER`.

        Raises
        ------
        UsageError, NoPlanFits
            When it cannot be priced or ordered (`Pricer.price`, `simulator.schedules.build_schedule`).
        """
        if candidate.schedule == IN_FLIGHT:
            candidate = replace(candidate, in_flight=self._in_flight(candidate))
        if candidate not in self._known:
            run = self.shortest(candidate)
            limits, peaks = self.limits(run), run.times.peak_memory_bytes
            excess = excess_bytes(peaks, limits)
            mixed = num_apart_violations(self.apart, candidate.partition)
            line = list(run.priced.flows) == list(pairwise(range(candidate.num_stages)))
            self._known[candidate] = Evaluated(
                candidate,
                run.step_time_ns,
                excess,
                mixed,
                line,
                run.num_actions,
                run.replicas,
                self._why_not_divided(candidate),
                min(limit - peak for peak, limit in zip(peaks, limits, strict=True)),
            )
        return self._known[candidate]

    def _why_not_divided(self, candidate: Candidate) -> str:
        places, graph = candidate.places, self.atoms.graph
        if not self.problem.has_module or not any(place.config.divides for place in places):
            return ""
        stage_of = [candidate.partition[atom] for atom in self.atoms.atom_of]
        why = why_undivided(graph, stage_of, [place.config.tensor for place in places])
        shares = self.pricer.sums.shares_divided(candidate.partition, places)
        shared = "a parameter that several stages share, one of which divides its own" if shares else ""
        return why or why_out_of_step(places, self.num_microbatches) or shared

    def limits(self, run: Run) -> list[int]:
        """Return what each simulated rank may hold: the least of the replicas that it represents."""
        limits, count = self._limits_of(run.priced.blocks), run.replicas
        return [min(limits[i : i + count]) for i in range(0, len(limits), count)]

    def _limits_of(self, blocks: tuple[Block, ...]) -> tuple[int, ...]:
        if blocks not in self._limits:
            self._limits[blocks] = limits_of(self.problem, blocks)
        return self._limits[blocks]

    def _in_flight(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the numbers of micro-batches in flight with which a candidate runs."""
        costs = self.pricer.price(candidate.partition, candidate.places, candidate.line).costs
        graph = stage_graph(costs)
        if candidate.in_flight:
            return raised_in_flight(graph, candidate.in_flight)
        return graph_in_flight(costs, graph, self.num_microbatches, latency=True)

    def shortest(self, candidate: Candidate) -> Run:
        """Return a run of as few micro-batches as tell the step to the nanosecond, or else of all."""
        priced, replicas, costs = self._simulated(candidate)
        own, count = self.num_microbatches // replicas, FEWEST_A_RANK * costs.num_ranks
        unit = _repeats_after(candidate, costs)
        while unit and own % unit == 0 and 3 * count <= 2 * own:
            run = self._run(candidate, priced, replicas, costs, count)
            found = regime(run.times, unit)
            if found and (own - count) % found.microbatches == 0:
                left = own - count
                return replace(run, left=left, left_ns=left // found.microbatches * found.time_ns)
            count += (own - count) % found.microbatches if found else count
        return self._run(candidate, priced, replicas, costs, own)

    def least_ns(self, candidate: Candidate) -> int:
        """Return what a candidate's stages take at least in any order; no order is made for it.

        Raises
        ------
        UsageError, NoPlanFits
            When it cannot be priced (`Pricer.price`).
        """
        priced = self.pricer.price(candidate.partition, candidate.places, candidate.line)
        return lower_bound_ns(priced.costs, self.num_microbatches, "any", speeds=self.speeds_of(priced.blocks)).ns

    def simulate(self, candidate: Candidate) -> Run:
        """Price, order, close and time a candidate."""
        priced, replicas, costs = self._simulated(candidate)
        return self._run(candidate, priced, replicas, costs, self.num_microbatches // replicas)

    def _simulated(self, candidate: Candidate) -> tuple[Priced, int, Costs]:
        """Return the price, how many replicas one simulated rank represents, and the costs of the first of them."""
        priced = self.pricer.price(candidate.partition, candidate.places, candidate.line)
        replicas = self._replicas(candidate.places, priced)
        return priced, replicas, _first_replicas(priced.costs, replicas) if replicas > 1 else priced.costs

    def _run(self, candidate: Candidate, priced: Priced, replicas: int, costs: Costs, count: int) -> Run:
        """Order, close and time a number of micro-batches of each replica."""
        remade = [p.config.recompute == "full" for p in candidate.places] if self.problem.training.whole_stages else ()
        limit = min(self._limits_of(priced.blocks))
        structure, costs = self.orders.closed(candidate, costs, priced.reduces, remade, count, limit)
        self._timed_s += TIMED_S * len(structure.arrays.actions)
        check_host_room(self.pricer, candidate, priced, structure.schedule)
        if costs.stages is not priced.costs.stages:
            priced = replace(priced, costs=replace(priced.costs, stages=costs.stages))
        return Run(priced, structure.times(costs, self.speeds_of(priced.blocks[::replicas])), replicas)

    def _replicas(self, places: Sequence[StagePlacement], priced: Priced) -> int:
        """Return how many replicas do the same as the first; 1 where they do not, or ranks differ in speed."""
        data = places[0].config.data
        if data == 1 or self.problem.machines.speeds or not replicated_alike(places):
            return 1
        looped = all(row == tuple(range(row[0], row[0] + data)) and row[0] % data == 0 for row in priced.costs.ranks)
        return 1 if not _takes_alike(priced.costs) or not looped or self.num_microbatches % data else data

    def speeds_of(self, blocks: Sequence[Sequence[int]]) -> tuple[float, ...]:
        """Return the speed of each block: that of its slowest rank."""
        speeds = self.problem.speeds
        return tuple(min(speeds[rank] for rank in block) for block in blocks)


def _repeats_after(candidate: Candidate, costs: Costs) -> int:
    """Return after how many micro-batches orders repeat that have the form of `planner.candidate.steady`; else 0."""
    if candidate.orders or candidate.schedule == "gpipe" or not is_fixed(candidate.schedule, costs):
        return 0
    one_rank = max(costs.multiples) == 1 and all(len(ranks) == 1 for ranks in costs.ranks)
    if not one_rank or not _takes_alike(costs):
        return 0
    return costs.num_ranks if candidate.schedule == INTERLEAVED else 1


def _takes_alike(costs: Costs) -> bool:
    """Whether all actions of a kind and stage take as long."""
    return all(isinstance(getattr(stage, part), int) for stage in costs.stages for part in PER_ACTION)


def _first_replicas(costs: Costs, replicas: int) -> Costs:
    """Return the costs of one replica: the first block of each place."""
    return replace(costs, ranks=tuple((ranks[0] // replicas,) for ranks in costs.ranks))
