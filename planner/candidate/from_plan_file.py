"""A plan file back as a candidate, and its stages priced anew for a problem: the same cut, places and schedule.

What comes back is a plan again, with the problem's machines and prices (F and whole B) and the orders that it had.
Leaves out new orders (`planner.candidate.order`) and whether the plan may still be chosen
(`planner.search.proposers.warm_start`).
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodel.errors import InvalidInput
from planner.candidate.candidate import IN_FLIGHT, Candidate, StagePlacement
from planner.candidate.price import Pricer
from planner.graph.atoms import Atoms, Partition, numbered, prepare
from planner.plan import Batch, Plan
from planner.question.problem import Problem
from planner.question.targets import in_line


def partition_of(plan: Plan, atoms: Atoms) -> tuple[Partition | None, str]:
    """Return the cut of a plan between some atoms, or why there is none."""
    graph = atoms.graph
    stage_of = {graph.index[name]: i for i, stage in enumerate(plan.stages) for name in stage.operators}
    for members in atoms.members:
        other = next((i for i in members if stage_of[i] != stage_of[members[0]]), None)
        if other is not None:
            names = [repr(graph.operators[i].name) for i in (members[0], other)]
            return None, f"it puts {' and '.join(names)} into two stages, and they must share one here"
    partition = numbered(atoms, [stage_of[members[0]] for members in atoms.members], as_named=True)
    return partition, "" if partition else "its stages wait for each other"


def renumbered(plan: Plan, atoms: Atoms, partition: Partition) -> list[int]:
    """Return which stage of the plan each stage of the partition is: those that no data orders keep their numbers."""
    number = {atoms.atom_of[atoms.graph.index[stage.operators[0]]]: i for i, stage in enumerate(plan.stages)}
    return [i for _, i in sorted((partition[atom], i) for atom, i in number.items())]


def candidate_of(plan: Plan, atoms: Atoms, partition: Partition, ranks: Sequence[int], *, line: bool) -> Candidate:
    """Return a plan as a candidate, the plan's rank r on ``ranks[r]``."""
    at = renumbered(plan, atoms, partition)
    stages = [(plan.stages[i], tuple(ranks[rank] for rank in plan.stages[i].ranks)) for i in at]
    return Candidate(
        partition,
        tuple(StagePlacement(stage.config, own, stage.microbatch_multiple) for stage, own in stages),
        plan.batch.microbatch_size,
        plan.schedule,
        line,
        tuple(plan.in_flight[i] for i in at) if plan.in_flight and plan.schedule == IN_FLIGHT else (),
    )


def relays(plan: Plan, atoms: Atoms) -> bool:
    """Whether a stage of a plan sends on what it received."""
    held = [set(stage.operators) for stage in plan.stages]
    producer = {tensor.name: tensor.producer for tensor in atoms.graph.tensors}
    return any(producer.get(name) not in held[edge.source] for edge in plan.edges for name in edge.tensors)


def passes_on(plan: Plan, atoms: Atoms, problem: Problem) -> bool:
    """Whether tensors of a plan pass from stage to next stage: as they do there, or must on a line for this problem."""
    return relays(plan, atoms) or (in_line(problem) and is_line(plan))


def is_line(plan: Plan) -> bool:
    """Whether each stage of a plan feeds the next and no other."""
    return all(edge.target == edge.source + 1 for edge in plan.edges)


def priced_again(plan: Plan, problem: Problem) -> Plan:
    """Return a plan on the machines of a problem, at the problem's batch and prices, with the orders that it has.

    Raises
    ------
    InvalidInput
        When the profile no longer admits the plan's cut, or gives it other edges.
    """
    atoms = prepare(problem.profile.graph)
    partition, why_not = partition_of(plan, atoms)
    if partition is None:
        raise InvalidInput(f"the plan cannot be priced with this profile: {why_not}; profile the model again and plan")
    at, size = renumbered(plan, atoms, partition), plan.batch.microbatch_size
    ranks = range(len(plan.orders))
    candidate = candidate_of(plan, atoms, partition, ranks, line=relays(plan, atoms))
    costs = Pricer(problem, atoms, size).price(partition, candidate.places, candidate.line).costs
    edges = {(at[edge.source], at[edge.target]): edge for edge in costs.edges}
    if edges.keys() != {(edge.source, edge.target) for edge in plan.edges}:
        raise InvalidInput("the plan's stages send each other other tensors than the profile's model; plan anew")
    prices = dict(zip(at, costs.stages, strict=True))
    found = ((edge, edges[edge.source, edge.target]) for edge in plan.edges)
    return replace(
        plan,
        cluster=problem.machines,
        batch=Batch(problem.global_batch, size, problem.global_batch // size),
        stages=tuple(replace(stage, cost=prices[i]) for i, stage in enumerate(plan.stages)),
        edges=tuple(replace(old, p2p_ns=new.p2p_ns, size_bytes=new.size_bytes) for old, new in found),
    )
