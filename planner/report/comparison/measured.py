"""A measured timeline with the plan that it was measured with, and the JSON of what they differ by.

The file is the executor's (``--timeline``). Its ranks and, rank by rank, its actions in their order must be those of
the plan; REDUCE is left out of that, for one sum of gradients may serve several stages. Leaves out whether model and
machine were the plan's: the executor checks that before it runs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

from costmodel.errors import DoesNotMatch, InvalidInput
from planner.plan import Plan
from planner.plan.replay import plan_schedule
from simulator.actions import RECEIVES, SENDS, Action, Kind, parse_action
from simulator.attribution import Attribution, attribute
from simulator.schedule import Schedule
from simulator.timeline import Timeline, read_timeline

NOT_IN_ORDER = RECEIVES | {Kind.REDUCE}
"""A receive is posted in the plan's order and waited for later."""


_WAY_OUT = "give the timeline that torchrun -m executor PLAN --timeline F wrote for this very plan"


@dataclass(frozen=True)
class Measurement:
    """A plan with its predicted and its measured timeline."""

    plan: Plan
    predicted: Timeline
    measured: Timeline

    @cached_property
    def attribution(self) -> Attribution:
        """Where the difference comes from."""
        return attribute(self.predicted, self.measured, host_calls(self.plan))

    @property
    def error_percent(self) -> float:
        """(predicted - measured) / measured in per cent; 0 for an empty timeline."""
        measured_ns = self.measured.step_time_ns
        return 100 * (self.predicted.step_time_ns / measured_ns - 1) if measured_ns else 0.0

    def to_json(self) -> dict[str, object]:
        """Return the JSON form; `difference_ns` is that of rank `rank`, `ranks` has all of them."""
        found = self.attribution
        return {
            "step_time_ns": self.measured.step_time_ns,
            "predicted_step_time_ns": self.predicted.step_time_ns,
            "error_percent": self.error_percent,
            "difference_ns": asdict(found.parts),
            "rank": found.rank,
            "ranks": [asdict(parts) for parts in found.per_rank],
            "drifts": [
                {
                    "stage": drift.stage,
                    "kind": str(drift.kind),
                    "actions": drift.num_actions,
                    "predicted_ns": drift.predicted_ns,
                    "measured_ns": drift.measured_ns,
                    "difference_ns": drift.difference_ns,
                }
                for drift in found.drifts
            ],
        }


def host_calls(plan: Plan) -> dict[Action, int]:
    """Return the ns that F, B and I of a plan were priced with for each SEND and RECV."""
    schedule = plan_schedule(plan)
    sizes, leads = message_bytes(plan, schedule), [block[0] for block in plan.blocks]
    return {
        action: plan.cluster.host_ns(lead, leads[schedule.graph.rank_of(action.peer, action.microbatch)], sizes[action])
        for lead, order in zip(leads, schedule.orders, strict=True)
        for action in order
        if action in sizes
    }


def message_bytes(plan: Plan, schedule: Schedule) -> dict[Action, int]:
    """Return the bytes of each SEND and RECV of a plan's schedule.

    A gradient counts as large as its output, for a plan does not say which tensors of an edge carry one.
    """
    edges = {(edge.source, edge.target): edge for edge in plan.edges}
    found = {}
    for action in (action for order in schedule.orders for action in order):
        if action.kind in SENDS | RECEIVES:
            downstream = action.kind in (Kind.SEND_F, Kind.RECV_B)
            source, target = (action.stage, action.peer) if downstream else (action.peer, action.stage)
            whole, taken = (plan.stages[stage].microbatch_multiple for stage in (source, target))
            found[action] = edges[source, target].size_bytes * min(whole, taken) // whole
    return found


def read_measured(path: str | Path, plan: Plan) -> Timeline:
    """Read the timeline of a run of a plan: of those that work in lockstep the lead, as in what is predicted.

    Raises
    ------
    DoesNotMatch
        When it is the timeline of another plan.
    InvalidInput
        When nothing in it takes any time.
    """
    timeline = read_timeline(path)
    if timeline.spans and not timeline.step_time_ns:
        raise InvalidInput(f"{path}: its actions take no time at all, so nothing was measured; {_WAY_OUT}")
    if timeline.num_ranks != len(plan.orders):
        raise DoesNotMatch(
            f"{path}: measured on {timeline.num_ranks} ranks, and the plan has {len(plan.orders)}; {_WAY_OUT}"
        )
    for rank in range(timeline.num_ranks):
        _check_rank(path, plan, timeline, rank)
    return _of_leads(timeline, [block[0] for block in plan.blocks])


def _of_leads(timeline: Timeline, leads: Sequence[int]) -> Timeline:
    number = {rank: i for i, rank in enumerate(leads)}
    spans = tuple(replace(span, rank=number[span.rank]) for span in timeline.spans if span.rank in number)
    return Timeline(len(leads), spans, tuple(timeline.memory[rank] for rank in leads) if timeline.memory else ())


def _check_rank(path: str | Path, plan: Plan, timeline: Timeline, rank: int) -> None:
    planned = [parse_action(text) for text in plan.orders[rank]]
    spans = sorted((span for span in timeline.spans if span.rank == rank), key=lambda span: span.start_ns)
    in_order = zip_longest(
        (str(action) for action in planned if action.kind not in NOT_IN_ORDER),
        (str(span.action) for span in spans if span.action.kind not in NOT_IN_ORDER),
        fillvalue="nothing more",
    )
    wrong = next((pair for pair in in_order if pair[0] != pair[1]), None)
    if wrong:
        raise DoesNotMatch(f"{path}: rank {rank} did {wrong[1]} where the plan has {wrong[0]}; {_WAY_OUT}")
    unlike = {a for a in planned if a.kind in RECEIVES} ^ {s.action for s in spans if s.action.kind in RECEIVES}
    if unlike:
        least = min(map(str, unlike))
        raise DoesNotMatch(f"{path}: {least} of rank {rank} is only in the timeline or the plan; {_WAY_OUT}")
