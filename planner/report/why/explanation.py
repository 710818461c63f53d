"""Why a plan takes as long as it does, from the plan file alone: critical path, idle time, stages, cuts, memory.

Everything is read off one simulation of the plan's own orders, so that the parts of the critical path add up to the
step time and idle time to bubble ratio x ranks x step time. What one stage holds is told for one of its ranks. Leaves
out what other plans would do (`planner.report.why.what_if` for single changes, the plan's `search` for rivals).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cached_property

from costmodel.stages.config import CONFIG
from costmodel.stages.costs import STAGE_COST, largest
from planner.plan import Plan, PlanEdge
from planner.plan.replay import plan_schedule, replay
from planner.report.summary.figures import figures
from planner.report.why.binding import Binding, binding
from simulator.actions import Action, Kind
from simulator.bubbles import BubbleCauses, bubble_causes
from simulator.critical_path import critical_path

FREES = (Kind.B, Kind.W)


class Explanation:
    """A plan with its timeline."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.costs = plan, plan.costs()
        self.schedule, self.timeline = plan_schedule(plan), replay(plan)

    @property
    def step_time_ns(self) -> int:
        """Simulated step time."""
        return self.timeline.step_time_ns

    @cached_property
    def path(self) -> dict[tuple[str, int, int, str], tuple[int, int]]:
        """Time and number of links of the critical path.

        Keys are (what, stage, peer, kind); the peer of what is no transfer is -1, a wait's kind that of what waits.
        """
        time_ns: Counter[tuple[str, int, int, str]] = Counter()
        number: Counter[tuple[str, int, int, str]] = Counter()
        for link in critical_path(self.schedule, self.timeline):
            key = (link.what, link.action.stage, link.action.peer, str(link.action.kind))
            time_ns[key] += link.time_ns
            number[key] += 1
        return {key: (time_ns[key], number[key]) for key in sorted(time_ns)}

    def on_path_ns(self, stage: int) -> int:
        """Time of the critical path in which a stage acts."""
        return sum(ns for (what, index, _, _), (ns, _) in self.path.items() if what == "action" and index == stage)

    def exposed_ns(self, edge: PlanEdge) -> int:
        """Time of the critical path that an edge's messages take, both ways."""
        ends = ((edge.source, edge.target), (edge.target, edge.source))
        return sum(ns for (what, *pair, _), (ns, _) in self.path.items() if what == "transfer" and tuple(pair) in ends)

    @cached_property
    def causes(self) -> BubbleCauses:
        """Idle time of each simulated rank by cause."""
        return bubble_causes(self.schedule, self.costs, self.timeline)

    @cached_property
    def binding(self) -> Binding:
        """What holds the step up."""
        return binding(self.plan, self.timeline, self.causes)

    @cached_property
    def idle(self) -> Mapping[str, int]:
        """Idle time by cause, summed over ranks, the largest first."""
        found = Counter(self.causes.over([len(block) for block in self.plan.blocks]))
        return {cause: time_ns for cause, time_ns in found.most_common() if time_ns}

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Most micro-batch groups of each stage that one rank holds at once."""
        most: dict[int, int] = defaultdict(int)
        for order in self.schedule.orders:
            alive: Counter[int] = Counter()
            for action in order:
                alive[action.stage] += _change(action)
                most[action.stage] = max(most[action.stage], alive[action.stage])
        return tuple(most[stage] for stage in range(len(self.plan.stages)))

    def stage_json(self, index: int) -> dict[str, object]:
        """Return what the explanation has of a stage."""
        stage = self.plan.stages[index]
        first = self.plan.blocks.index(stage.blocks[0])
        activation_bytes = largest(stage.cost.activation_bytes)
        return {
            "index": index,
            "name": stage.name,
            "first": stage.operators[0],
            "last": stage.operators[-1],
            "operators": len(stage.operators),
            "ranks": list(stage.ranks),
            "config": CONFIG.write(stage.config),
            "microbatch_multiple": stage.microbatch_multiple,
            **{key: value for key, value in STAGE_COST.write(stage.cost).items() if key.endswith("_ns")},
            "critical_path_ns": self.on_path_ns(index),
            "memory": {
                **dict(stage.cost.memory_terms),
                "activations": activation_bytes * self.in_flight[index],
                "activations_per_microbatch": activation_bytes,
                "in_flight": self.in_flight[index],
                "peak_bytes": self.timeline.peak_memory_bytes[first],
                "upper_bytes": self.plan.prediction.peak_memory_upper_bytes[stage.ranks[0]],
            },
        }

    def cut_json(self, edge: PlanEdge) -> dict[str, object]:
        """Return what the explanation has of an edge: `exposed_ns` is what its messages take of the critical path."""
        return {
            "from": edge.source,
            "to": edge.target,
            "tensors": list(edge.tensors),
            "bytes": edge.size_bytes,
            "p2p_ns": edge.p2p_ns,
            "gradient": edge.gradient,
            "exposed_ns": self.exposed_ns(edge),
            "hidden": self.exposed_ns(edge) == 0,
        }

    @property
    def next_best(self) -> list[tuple[str, int]]:
        """Rivals that the search simulated, the fastest first."""
        return sorted(self.plan.search.baselines.items(), key=lambda row: (row[1], row[0]))

    def to_json(self) -> dict[str, object]:
        """Return all of it but single changes."""
        step_time_ns = self.step_time_ns
        return {
            "step_time_ns": step_time_ns,
            "critical_path": [
                {"what": what, "stage": stage, "peer": peer, "kind": kind, "time_ns": ns, "links": number}
                for (what, stage, peer, kind), (ns, number) in self.path.items()
            ],
            "bubble_ratio": self.timeline.bubble_ratio,
            "bubble_causes": dict(self.idle),
            "binding": self.binding.to_json(),
            "stages": [self.stage_json(index) for index in range(len(self.plan.stages))],
            "cuts": [self.cut_json(edge) for edge in self.plan.edges],
            "schedule": self.plan.schedule,
            "choice": str(self.plan.extra.get("choice", "")),
            **figures(self.plan, "status lower_bound_ns gap scope"),
            "next_best": [
                {"name": name, "step_time_ns": ns, "slower": ns / step_time_ns - 1 if step_time_ns else 0.0}
                for name, ns in self.next_best
            ],
        }


def _change(action: Action) -> int:
    """Return by how much an action changes what its rank keeps, in micro-batch groups."""
    return (action.kind is Kind.F) - (action.kind in FREES)
