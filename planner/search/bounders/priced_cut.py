"""Bounds of one cut that was priced and not simulated: what its ranks hold and take at least.

Leaves out bounds over many cuts (`line_bounds.py`, `closed_form.py`, `lattice/`), and messages that wait for others.
"""

from costmodel.stages.costs import StageCost, least
from planner.candidate.price import Priced
from planner.question.problem import AUTO_LOOPED
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.free_bounds import FUSED


def could_hold(priced: Priced, cuts: FamilyPartitions, most_bytes: int) -> bool:
    """Whether every stage has room for the micro-batches that 1F1B or interleaved stages keep; else for one each.

    Stages whose whole forward runs again keep less, and pinned ones may be configured otherwise: these are simulated.
    """
    again = cuts.family.config.recompute == "full" and cuts.evaluator.problem.training.whole_stages
    if not most_bytes or again or cuts.pinned.places:
        return True
    if cuts.family.chunks > 1 and cuts.schedules == AUTO_LOOPED:
        return max(looped_peak_bytes(priced, cuts.num_microbatches, cuts.family.chunks)) <= most_bytes
    count = cuts.num_microbatches if cuts.family.chunks == 1 and cuts.schedules[0] in FUSED else 1
    return max(least_peak_bytes(priced, count)) <= most_bytes


def least_peak_bytes(priced: Priced, num_microbatches: int) -> list[int]:
    """Return what a rank of each stage holds at least under 1F1B: as many micro-batches as its depth."""
    costs = priced.costs
    depth = [1] * len(costs.stages)
    for edge in reversed(costs.edges):  # edges rise, so that what lies behind a target is known
        depth[edge.source] = max(depth[edge.source], depth[edge.target] + 1)
    return [
        stage.static_bytes + min(num_microbatches, count) * least(stage.activation_bytes)
        for stage, count in zip(costs.stages, depth, strict=True)
    ]


def looped_peak_bytes(priced: Priced, num_microbatches: int, chunks: int) -> list[int]:
    """Return what a rank of each place holds at least when interleaved stages have been warmed up.

    `simulator.schedules.interleaved_1f1b`: a number of forwards, p micro-batches of each stage in turn, then one more
    before the first backward. Where micro-batches do not divide by p, each counts as one of the stage that keeps least.
    """
    stages, places = priced.costs.stages, len(priced.costs.stages) // chunks
    found = []
    for place in range(places):
        own = stages[place::places]
        kept = [least(stage.activation_bytes) for stage in own]
        done = min(
            chunks * num_microbatches, 2 * (places - 1 - place) + (chunks - 1) * min(places, num_microbatches) + 1
        )
        rounds, rest = divmod(done, chunks * places)
        counts = [rounds * places + min(places, max(0, rest - chunk * places)) for chunk in range(chunks)]
        if num_microbatches % places:
            counts, kept = [done], [min(kept)]
        held = sum(count * size for count, size in zip(counts, kept, strict=True))
        found.append(sum(stage.static_bytes for stage in own) + held)
    return found


def least_step_ns(priced: Priced, cuts: FamilyPartitions) -> int:
    """Return a bound on the step of a priced cut: a rank's work, after the way there and before the way back.

    Forwards lead to the first stage of a rank, whole backwards away from its last; where B may be split, W may be what
    a rank does last.
    """
    costs = priced.costs
    whole = all(name in FUSED for name in cuts.schedules)
    before, after = [0] * len(costs.stages), [0] * len(costs.stages)
    for edge in costs.edges:  # rising: all that leads to a source comes before
        source = costs.stages[edge.source]
        reached = before[edge.source] + least(source.forward_ns) + edge.p2p_ns
        before[edge.target] = max(before[edge.target], reached)
        if edge.gradient and whole:
            back = least(source.backward_input_ns) + least(source.backward_weight_ns)
            after[edge.target] = max(after[edge.target], after[edge.source] + back + edge.p2p_ns)
    of_rank: dict[int, list[int]] = {}
    for stage, ranks in enumerate(costs.ranks):
        for rank in ranks if cuts.pinned.places else ranks[:1]:  # elsewhere all replicas have the same stages
            of_rank.setdefault(rank, []).append(stage)
    number, rows = cuts.evaluator.num_microbatches, zip(costs.stages, costs.ranks, costs.multiples, strict=True)
    works = [number // (multiple * len(ranks)) * action_ns(stage) for stage, ranks, multiple in rows]
    longest = max(
        min(before[s] for s in row) + sum(works[s] for s in row) + min(after[s] for s in row)
        for row in of_rank.values()
    )
    return int(longest / max(cuts.evaluator.problem.speeds))


def action_ns(stage: StageCost) -> int:
    """Return what one micro-batch takes at least."""
    return sum(least(a) for a in (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns))
