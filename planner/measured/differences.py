"""What the actions of a plan were planned to take and took, by stage and kind, without the host time of their messages.

Leaves out why (`planner.report.comparison.measured`) and what follows from it (`planner.measured.calibration`).
"""

from dataclasses import dataclass, replace
from statistics import median

from planner.plan import Plan
from planner.plan.replay import replay
from planner.report.comparison.measured import host_calls
from simulator.actions import Kind
from simulator.measured_times import durations_ns
from simulator.timeline import Timeline


@dataclass(frozen=True, slots=True)
class ActionError:
    """What an action of a kind and stage was planned to take and took, ns (medians), host time of messages apart."""

    stage: int
    kind: Kind
    actions: int
    planned_ns: int
    measured_ns: int

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "stage": self.stage,
            "kind": str(self.kind),
            "actions": self.actions,
            "planned_ns": self.planned_ns,
            "measured_ns": self.measured_ns,
            "error_percent": 100 * (self.planned_ns / self.measured_ns - 1) if self.measured_ns else None,
        }


def bare_timeline(plan: Plan) -> Timeline:
    """Return a plan's predicted timeline, each F, B and I shorter by the host time of its messages."""
    calls: dict[tuple[int, bool, int], int] = {}
    for message, host_ns in host_calls(plan).items():
        multiple = plan.stages[message.stage].microbatch_multiple
        forward = message.kind in (Kind.SEND_F, Kind.RECV_F)
        key = message.stage, forward, message.microbatch // multiple * multiple
        calls[key] = calls.get(key, 0) + host_ns
    spans = []
    for span in replay(plan).spans:
        key = span.action.stage, span.action.kind is Kind.F, span.action.microbatch
        takes = span.stream == "compute" and span.action.kind in (Kind.F, Kind.B, Kind.I)
        spans.append(replace(span, end_ns=max(span.start_ns, span.end_ns - calls.get(key, 0) * takes)))
    return Timeline(len(plan.blocks), tuple(spans))


def differences(bare: Timeline, measured: Timeline) -> list[ActionError]:
    """Return planned and measured medians by stage and kind; the planned ones without host time of messages."""
    planned, took = durations_ns(bare), durations_ns(measured)
    return [
        ActionError(stage, kind, len(took[stage, kind]), round(median(row)), round(median(took[stage, kind])))
        for (stage, kind), row in sorted(planned.items())
        if (stage, kind) in took
    ]


def error_percent(plan: Plan, measured: Timeline) -> float:
    """Return (predicted - measured) / measured step time of a plan's own costs, in per cent."""
    return 100 * (replay(plan).step_time_ns / measured.step_time_ns - 1)
