"""A pipeline that ran elsewhere, from when its actions did: a timeline with its waits, its orders, and its costs.

Stages form a chain. The time between a sender's end and the start of an action that waited for its message is the
message's; the time between an action whose message was there already and the one before it is what its rank needs
between two, which counts to the action. Costs are means, for a step is a sum, over the half of the steps that are
nearest to the median one; a whole backward is divided into I and W. Leaves out memory, the optimizer, and clocks of
hosts that differ.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from costmodel.errors import InvalidInput
from costmodel.importers.kineto_actions import TracedAction
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import Action, Kind, parse_action
from simulator.schedule import Schedule
from simulator.timeline import Span, Timeline
from simulator.torch_csv import schedule_from_torch_csv

Step = Sequence[Sequence[TracedAction]]
"""Of each rank its actions by start."""
BACKWARD = ("B", "I")


@dataclass(frozen=True, slots=True)
class Begun:
    """An action, the end of the one before it on its rank, and the end of the one that sent what it needs, if any."""

    action: TracedAction
    rank: int
    before_ns: int | None
    sent_ns: int | None

    @property
    def waited(self) -> bool:
        """Whether the rank stood still for the message."""
        return self.sent_ns is not None and (self.before_ns is None or self.sent_ns > self.before_ns)


@dataclass(frozen=True)
class TracedRun:
    """The steps of a run; every one has the same actions in the same orders.

    Raises
    ------
    InvalidInput
        When orders differ between steps, or are no schedule of a chain of stages.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise InvalidInput("no step at all; profile one whole step at least")
        first = [list(map(str, row)) for row in self.steps[0]]
        for number, step in enumerate(self.steps):
            for rank, row in enumerate(step):
                if list(map(str, row)) != first[rank]:
                    raise InvalidInput(
                        f"rank {rank} did other actions in step {number} ({len(row)}) than in step 0 "
                        f"({len(first[rank])}); profile whole steps, from before schedule.step to behind it"
                    )
        _ = self.schedule

    @cached_property
    def orders_csv(self) -> str:
        """The orders as torch writes them, one row a rank."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([list(map(str, row)) for row in self.steps[0]])
        return text.getvalue()

    @cached_property
    def schedule(self) -> Schedule:
        """The orders as a schedule."""
        return schedule_from_torch_csv(self.orders_csv, "the actions of the trace")

    def step_ns(self, step: Step) -> int:
        """Return first start to last end over all ranks."""
        actions = [action for row in step for action in row]
        return max(a.end_ns for a in actions) - min(a.start_ns for a in actions)

    @cached_property
    def usual(self) -> tuple[Step, ...]:
        """The half of the steps that are nearest to the median one, the nearest first."""
        middle_ns = median(map(self.step_ns, self.steps))
        nearest = sorted(self.steps, key=lambda step: abs(self.step_ns(step) - middle_ns))
        return tuple(nearest[: (len(nearest) + 1) // 2])

    @cached_property
    def step_time_ns(self) -> int:
        """Mean of the usual steps."""
        return round(fmean(map(self.step_ns, self.usual)))

    def begun(self, step: Step) -> Iterator[Begun]:
        """Yield every action of a step with what it could have waited for."""
        ranks = self.schedule.graph.ranks
        ended = {(a.stage, a.kind, a.microbatch): a.end_ns for row in step for a in row}
        for rank, row in enumerate(step):
            before_ns = None
            for action in row:
                sent_ns = None
                peer = _sender(action, len(ranks))
                if peer is not None and ranks[peer] != ranks[action.stage]:
                    kinds = ("F",) if action.kind == "F" else BACKWARD
                    sent_ns = next(
                        (ended[key] for kind in kinds if (key := (peer, kind, action.microbatch)) in ended), None
                    )
                yield Begun(action, rank, before_ns, sent_ns)
                before_ns = action.end_ns

    @cached_property
    def between_ns(self) -> tuple[int, ...]:
        """What each rank needs between an action and the next one whose message is there: the mean."""
        rows: list[list[int]] = [[0] for _ in self.steps[0]]
        for step in self.usual:
            for each in self.begun(step):
                if each.before_ns is not None and not each.waited:
                    rows[each.rank].append(each.action.start_ns - each.before_ns)
        return tuple(round(fmean(row[1:] or row)) for row in rows)

    @cached_property
    def p2p_ns(self) -> dict[tuple[int, int], int]:
        """What messages between each two stages on different ranks take; where nobody waited, what others do."""
        rows: dict[tuple[int, int], list[int]] = {}
        for step in self.usual:
            for each in self.begun(step):
                if each.waited and each.sent_ns is not None:
                    stage, peer = each.action.stage, _sender(each.action, self.schedule.graph.num_stages)
                    after = each.action.start_ns - each.sent_ns - self.between_ns[each.rank]
                    rows.setdefault(tuple(sorted((stage, peer or 0))), []).append(max(0, after))  # type: ignore[arg-type]
        known = {key: round(fmean(row)) for key, row in rows.items()}
        usual = round(fmean(known.values())) if known else 0
        ranks = self.schedule.graph.ranks
        pairs = [(i, i + 1) for i in range(len(ranks) - 1)]
        return {pair: known.get(pair, usual) if ranks[pair[0]] != ranks[pair[1]] else 0 for pair in pairs}

    @cached_property
    def action_ns(self) -> dict[tuple[int, str], int]:
        """What an action of each stage and kind takes, with what its rank needs before it: the mean."""
        rows: dict[tuple[int, str], list[int]] = {}
        for step in self.usual:
            for row in step:
                for action in row:
                    rows.setdefault((action.stage, action.kind), []).append(action.end_ns - action.start_ns)
        ranks = self.schedule.graph.ranks
        return {key: round(fmean(row)) + self.between_ns[ranks[key[0]][0]] for key, row in rows.items()}

    @cached_property
    def costs(self) -> Costs:
        """What stages and messages cost, for the simulator."""
        graph = self.schedule.graph
        edges = tuple(EdgeCost(*pair, p2p_ns) for pair, p2p_ns in self.p2p_ns.items())
        return Costs(tuple(map(self._stage, range(graph.num_stages))), edges, graph.ranks)

    def _stage(self, stage: int) -> StageCost:
        took = self.action_ns
        whole = took.get((stage, "B"), 0)
        parts = (took.get((stage, kind), 0) for kind in ("I", "W"))
        inputs, weights = parts if (stage, "I") in took else (whole - whole // 2, whole // 2)
        return StageCost(took.get((stage, "F"), 0), inputs, weights)

    @cached_property
    def timeline(self) -> Timeline:
        """The most usual step: actions, and the waits before them."""
        step = self.usual[0]
        first_ns = min(action.start_ns for row in step for action in row)
        spans = []
        for each in self.begun(step):
            action = parse_action(str(each.action))
            start_ns, end_ns = each.action.start_ns - first_ns, each.action.end_ns - first_ns
            if each.waited:
                peer = _sender(each.action, self.schedule.graph.num_stages)
                kind = Kind.RECV_F if action.kind is Kind.F else Kind.RECV_B
                receive = Action(kind, action.stage, action.microbatch, peer=-1 if peer is None else peer)
                waited_from = 0 if each.before_ns is None else each.before_ns - first_ns
                spans.append(Span(receive, each.rank, "receive", waited_from, start_ns))
            spans.append(Span(action, each.rank, "compute", start_ns, end_ns))
        return Timeline(len(step), tuple(sorted(spans, key=lambda s: (s.rank, s.stream, s.start_ns))))

    @cached_property
    def waits_ns(self) -> tuple[int, ...]:
        """What each rank waited for messages in that step."""
        found = [0] * self.timeline.num_ranks
        for span in self.timeline.spans:
            found[span.rank] += (span.end_ns - span.start_ns) * (span.stream == "receive")
        return tuple(found)


def _sender(action: TracedAction, num_stages: int) -> int | None:
    """Return the stage whose output, or whose gradient, an action needs; W needs none."""
    if action.kind == "F":
        return action.stage - 1 if action.stage else None
    return action.stage + 1 if action.kind in BACKWARD and action.stage + 1 < num_stages else None
