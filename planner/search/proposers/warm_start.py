"""An old plan as the start of a search (``plan --from``): as it stands where it is in the space, else its cut alone.

What flags, devices and batch say now comes first: an old plan that contradicts them is priced, that it may be compared,
and gives its cut to the nearest family that admits it. Leaves out what moved (`planner.report.comparison.moved`).
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import islice

from costmodel.errors import PenstockError
from costmodel.machines.cluster import Cluster
from costmodel.stages.config import StageConfig
from planner.candidate.candidate import IN_FLIGHT, Candidate, is_looped
from planner.candidate.evaluate import Evaluated
from planner.candidate.from_plan_file import candidate_of, is_line, partition_of, passes_on
from planner.candidate.make import make
from planner.candidate.order import WITHIN_LIMIT
from planner.graph.atoms import Partition
from planner.graph.layers import first_layers
from planner.plan import Plan, SearchResult
from planner.plan.rank_order import rank_order_of
from planner.question.problem import AUTO, Problem
from planner.question.targets import in_line, refusal
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.space.family import Family
from planner.search.space.open_choices import (
    allows_custom_in_flight,
    allows_per_stage_replicas,
    allows_split_backward,
    with_split_backward,
)
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.state.result import CUT, NOTHING, PLAN, WarmStartOutcome
from planner.search.subsolver import SearchState, Subsolver

NUM_FAMILIES = 16
"""Families near the old plan's that are tried until its cut fits in one."""


def warm_start(old: Plan, prepared: PreparedProblem, pool: CandidatePool, bounds: FamilyBounds) -> WarmStartOutcome:
    """Offer the pool what is possible of an old plan."""
    partition, torn = partition_of(old, prepared.atoms)
    if partition is None:
        return WarmStartOutcome(NOTHING, torn, None)
    candidate = _candidate(old, prepared, partition)
    conflicts, each, in_space = list(_conflicts(old, prepared)), None, True
    if (
        len(old.orders) <= prepared.problem.num_devices
        and not prepared.problem.global_batch % candidate.microbatch_size
    ):
        try:
            each = prepared.evaluator(candidate.microbatch_size).evaluate(candidate)
        except PenstockError as error:
            conflicts.append(str(error))
    if each and not conflicts:
        family = _family(prepared, each.candidate)
        in_space = family is not None or _is_varied(prepared, each.candidate)
        conflicts += islice(_refusals(prepared, pool, each, family), 1)
        if not conflicts:
            _offer(prepared, pool, bounds, [each], family)
    used = CUT if _offer_cut(old, prepared, pool, bounds, candidate) else NOTHING
    return WarmStartOutcome(
        used if conflicts else PLAN, "; ".join(conflicts), each.step_time_ns if each else None, in_space
    )


def _candidate(old: Plan, prepared: PreparedProblem, partition: Partition) -> Candidate:
    """Return the old plan as a candidate."""
    line = passes_on(old, prepared.atoms, prepared.problem)
    return candidate_of(old, prepared.atoms, partition, _ranks(old, prepared.problem), line=line)


def _ranks(old: Plan, problem: Problem) -> Sequence[int]:
    """Return the rank here of each of the old plan's: the next of its kind, where there are enough; else its number.

    A plan numbers the devices that it uses, which need not be the first of a cluster.
    """

    def kind(cluster: Cluster, rank: int) -> tuple[str, float]:
        return cluster.device_of(rank).name, dict(cluster.speeds).get(rank, 1.0)

    free, found = {rank: kind(problem.machines, rank) for rank in range(problem.num_devices)}, []
    for rank in range(len(old.orders)):
        own = kind(old.cluster, rank)
        here = next((other for other, each in free.items() if each == own), None)
        if here is None:
            return range(len(old.orders))
        found.append(here)
        del free[here]
    return found


def _num_places(old: Plan) -> int:
    return len({stage.ranks for stage in old.stages})


def _conflicts(old: Plan, prepared: PreparedProblem) -> Iterator[str]:
    """Yield what devices, batch and flags say otherwise: they win."""
    problem, size, places = prepared.problem, old.batch.microbatch_size, _num_places(old)
    replicas = {stage.config.data for stage in old.stages}
    if len(old.orders) > problem.num_devices:
        yield f"it needs {len(old.orders)} devices, there are {problem.num_devices}"
    if problem.global_batch % (size * (min(replicas) if len(replicas) == 1 else 1)):
        on = f" on {min(replicas)} replicas" if replicas != {1} else ""
        yield f"its micro-batches of {size}{on} do not divide the batch of {problem.global_batch}"
    own: dict[str, set[int] | set[str] | set[bool]] = {"stages": {places}, "chunks": {len(old.stages) // places}}
    own["sequence_parallel"] = {stage.config.sequence > 1 for stage in old.stages}
    if problem.space.rank_order:
        configs, ranks = zip(*((stage.config, stage.ranks) for stage in old.stages), strict=True)
        follows = bool(rank_order_of(configs, ranks, [problem.space.ranks]))
        own["rank_order"] = {problem.space.rank_order if follows else ",".join(old.rank_order) or "none"}
    if problem.space.recompute_layers:
        own["recompute_layers"] = {_layers_again(old, problem)}
        own["recompute"] = {problem.space.recompute or "full"}
    for name, value in problem.space.to_json().items():
        has = own.get(name) or {getattr(stage.config, name) for stage in old.stages}
        if has != {value}:
            yield f"--{name.replace('_', '-')} {value} is fixed, and it has {' and '.join(map(str, sorted(has)))}"
    if problem.microbatch_size not in (None, size):
        yield f"--microbatch-size {problem.microbatch_size} is fixed, and it has {size}"
    if problem.schedule not in (AUTO, old.schedule):
        yield f"--schedule {problem.schedule} is fixed, and it has {old.schedule}"
    if problem.max_stages is not None and len(old.stages) > problem.max_stages:
        yield f"--max-stages {problem.max_stages} is fixed, and it has {len(old.stages)}"
    if prepared.pinned.places:
        yield "--pin gives stages of its own"
    if in_line(problem) and not is_line(old):
        yield "its stages form no line, and must here"


def _layers_again(old: Plan, problem: Problem) -> int:
    """Return the number of layers that the problem runs again where each stage of an old plan does so; else 0."""
    graph, count = problem.profile.graph, problem.space.recompute_layers or 0
    rows = ([graph.index[name] for name in stage.operators] for stage in old.stages)
    wanted = [first_layers(graph, row, count) for row in rows]
    return count if wanted == [stage.config.recomputed_operators for stage in old.stages] else 0


def _family(prepared: PreparedProblem, candidate: Candidate) -> Family | None:
    """Return the family whose cuts place such a candidate."""
    places = candidate.places
    chunks = candidate.num_stages // len({place.ranks for place in places})
    own = places[0].config, candidate.microbatch_size, chunks
    if len(places) // chunks * places[0].config.num_ranks > prepared.problem.num_devices:
        return None  # its stages are configured differently
    for arrangement in range(len(prepared.families.arrangements)) if not prepared.pinned.places else ():
        family = Family(*own, arrangement)
        if prepared.families.holds(family) and prepared.cuts(family).places(candidate.partition) == places:
            split = candidate.schedule == WITHIN_LIMIT and allows_split_backward(prepared.problem)
            return with_split_backward(family) if split else family
    return None


def _refusals(prepared: PreparedProblem, pool: CandidatePool, each: Evaluated, family: Family | None) -> Iterator[str]:
    """Yield why a candidate that no flag contradicts is none of what is searched and may be chosen."""
    problem, found = prepared.problem, each.candidate
    schedules = prepared.cuts(family).schedules if family else problem.schedules
    if not is_looped(found.places) and allows_custom_in_flight(problem):
        schedules = (*schedules, IN_FLIGHT)
    if allows_split_backward(problem):
        schedules = tuple(dict.fromkeys((*schedules, WITHIN_LIMIT)))
    if found.schedule not in schedules:
        yield f"its schedule {found.schedule} is none of those tried ({', '.join(schedules)}); --schedule keeps it"
    if each.num_apart_violations:
        yield "it puts into one stage what --pin keeps apart"
    if each.excess_bytes:
        yield f"it is over the memory of a device by {each.excess_bytes / 2**20:.3f} MiB"
    if why := pool.why_not_run(each):
        yield f"{pool.aim} does not run {why}; --target any does with it"
    if pool.writing and not pool.writing.fits(each.num_actions, each.copies):
        yield f"its {each.num_actions} actions take too long to be written; allow more --time-limit"
    evaluator, result = (
        prepared.evaluator(found.microbatch_size),
        SearchResult("heuristic", each.step_time_ns, None, ""),
    )
    if problem.target and refusal(problem, made := make(evaluator, found, result, "", lowered=False)):
        yield refusal(problem, made)


def _is_varied(prepared: PreparedProblem, found: Candidate) -> bool:
    """Whether it is what replicas by stage, or another placing of its stages, may come to."""
    plain = all(
        place.microbatch_multiple == 1 and place.config.offload == "none" and place.config.whole_operators
        for place in found.places
    )
    sizes = prepared.problem.microbatch_sizes_of(1)
    alone = StageConfig() in prepared.families.degrees and found.microbatch_size in sizes
    return (
        plain and alone and allows_per_stage_replicas(prepared.problem, prepared.pinned) and not is_looped(found.places)
    )


def _offer_cut(
    old: Plan, prepared: PreparedProblem, pool: CandidatePool, bounds: FamilyBounds, candidate: Candidate
) -> bool:
    """Offer the old cut in the nearest families that admit it, until one fits; return whether there was any."""
    offered = False
    for family in _nearest(old, prepared)[:NUM_FAMILIES]:
        cuts = prepared.cuts(family)
        found = cuts.evaluate_under(candidate.partition, cuts.schedules, line=candidate.line)
        _offer(prepared, pool, bounds, found, family)
        offered = offered or bool(found)
        if any(each.fits for each in found):
            break
    return offered


def _nearest(old: Plan, prepared: PreparedProblem) -> list[Family]:
    """Return families into whose places the old cut goes, the least different first, then those with most devices."""
    stage, problem, num_stages = old.stages[0], prepared.problem, len(old.stages)
    chunks = num_stages // _num_places(old)
    names = ("tensor", "sequence", "context", "expert", "expert_tensor", "zero", "shard_group", "recompute", "offload")

    def differences(family: Family) -> tuple[int, ...]:
        unlike = [getattr(family.config, name) != getattr(stage.config, name) for name in names]
        others = (family.chunks != chunks) + (family.microbatch_size != old.batch.microbatch_size)
        return sum(unlike) + others, -(num_stages // family.chunks) * family.devices_per_stage

    return sorted(
        (
            family
            for family in prepared.families.all
            if num_stages % family.chunks == 0
            and num_stages // family.chunks <= prepared.families.max_pipeline_stages(family)
            and problem.space.stages in (None, num_stages // family.chunks)
            and prepared.pinned_partition is None
        ),
        key=differences,
    )


def _offer(
    prepared: PreparedProblem,
    pool: CandidatePool,
    bounds: FamilyBounds,
    found: Sequence[Evaluated],
    family: Family | None,
) -> None:
    """Tell the pool, and what bounds and cuts with care know of a family."""
    if family:
        bounds.know(family)
        prepared.family_of.update((each.candidate, family) for each in found)
    pool.offer(found)


class WarmStart(Subsolver):
    """The plan that a search starts from."""

    name, kind = "old plan", "first"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether there is one."""
        return state.problem.old_plan is not None

    def steps(self) -> Generator[None]:
        """Offer what is possible of it, once."""
        state = self.state
        if state.problem.old_plan and not state.old_plan:
            state.old_plan = warm_start(state.problem.old_plan, state.prepared, state.pool, state.bounds)
            yield
