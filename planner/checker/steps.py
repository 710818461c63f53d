"""The checker's own reading of a plan's orders: texts to steps, micro-batch groups, who works where.

Written apart from `simulator.actions` on purpose: two readers of one format find each other's mistakes.
Ranks that divide tensors or the sequence work in lockstep: the first of them, the lead, represents all, and the
others must have its order. Knows whole sequences only; a sequence slice in a plan is refused. Also refused is what
no stage of a plan needs today: UNSHARD, RESHARD, OFFLOAD and RELOAD.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from planner.checker.problem import PlanProblem
from planner.plan import Plan, PlanStage

COMPUTE = ("F", "B", "I", "W", "R")
BACKWARD = ("B", "I", "W")
TRANSFERS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
CLOSING = ("REDUCE", "OPT")

_INDEX = r"(0|[1-9][0-9]{0,8})"
_COMPUTE = re.compile(rf"{_INDEX}([FBIWR]){_INDEX}")
_TRANSFER = re.compile(rf"{_INDEX}((?:SEND|RECV)_[FB]){_INDEX}([<>]){_INDEX}")
_CLOSING = re.compile(rf"{_INDEX}(REDUCE|OPT)")
_SLICED = re.compile(rf"{_INDEX}[A-Z_]+{_INDEX}\.{_INDEX}(?:[<>]{_INDEX})?")


@dataclass(frozen=True, slots=True)
class Step:
    """An action at its place: `position` in the order of `rank`; `microbatch` and `peer` -1 where there is none."""

    rank: int
    position: int
    kind: str
    stage: int
    microbatch: int
    peer: int
    text: str

    @property
    def place(self) -> str:
        """Where the action is, for people."""
        return f"rank {self.rank}, action {self.position} ({self.text})"


Orders = tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class Layout:
    """Who works on which micro-batches, and over which edges gradients flow; `ranks` are leads."""

    num_microbatches: int
    multiples: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    backward: tuple[bool, ...]
    edges: tuple[tuple[int, int], ...]
    gradients: frozenset[tuple[int, int]]
    divided: frozenset[int] = frozenset()
    """Stages whose replicas divide the optimizer and meet in its step."""

    @classmethod
    def of(cls, plan: Plan) -> "Layout":
        """Read the layout off a plan."""
        backward = tuple(stage.cost.backward for stage in plan.stages)
        return cls(
            plan.batch.num_microbatches,
            tuple(stage.microbatch_multiple for stage in plan.stages),
            tuple(leads_of(stage) for stage in plan.stages),
            backward,
            tuple((e.source, e.target) for e in plan.edges),
            frozenset(
                (e.source, e.target) for e in plan.edges if e.gradient and backward[e.source] and backward[e.target]
            ),
            frozenset(i for i, stage in enumerate(plan.stages) if stage.config.zero and len(leads_of(stage)) > 1),
        )

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Stages whose outputs each stage reads."""
        return tuple(tuple(a for a, b in self.edges if b == stage) for stage in range(len(self.ranks)))

    @cached_property
    def gradient_sources(self) -> tuple[tuple[int, ...], ...]:
        """Stages that send each stage a gradient."""
        return tuple(
            tuple(b for a, b in self.edges if a == stage and (a, b) in self.gradients)
            for stage in range(len(self.ranks))
        )

    def firsts(self, stage: int) -> range:
        """First micro-batch of each of a stage's groups."""
        return range(0, self.num_microbatches, self.multiples[stage])

    def rank_of(self, stage: int, first: int) -> int:
        """Rank that works on the group that starts at `first`: the g-th group has the (g mod r)-th rank."""
        ranks = self.ranks[stage]
        return ranks[first // self.multiples[stage] % len(ranks)]

    def meetings(self, source: int, target: int) -> Iterator[tuple[int, int]]:
        """Yield (group of source, group of target), each by its first, that share a micro-batch."""
        for mine in self.firsts(source):
            earliest = mine // self.multiples[target] * self.multiples[target]
            for theirs in range(earliest, mine + self.multiples[source], self.multiples[target]):
                yield mine, theirs


def leads_of(stage: PlanStage) -> tuple[int, ...]:
    """Return the first rank of each of a stage's replicas."""
    return stage.ranks[:: stage.config.tensor * stage.config.context]


def lead_of_ranks(plan: Plan) -> dict[int, int]:
    """Return the rank that represents each rank."""
    found: dict[int, int] = {}
    for stage in plan.stages:
        size = stage.config.tensor * stage.config.context
        found.update((rank, stage.ranks[place // size * size]) for place, rank in enumerate(stage.ranks))
    return found


def lockstep_problems(plan: Plan) -> Iterator[PlanProblem]:
    """Yield ranks whose order is not that of their lead."""
    for rank, lead in sorted(lead_of_ranks(plan).items()):
        mine, right = plan.orders[rank], plan.orders[lead]
        if mine != right:
            pairs = enumerate(zip_longest(mine, right, fillvalue="nothing"))
            position, (found, needed) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
            yield PlanProblem(
                "order",
                f"rank {rank}, action {position}",
                f"{found}, and rank {lead}, with which it divides its stage, has {needed}; they need one order",
            )


def read_steps(plan: Plan) -> tuple[Orders, list[PlanProblem]]:
    """Return the steps of every lead (none for other ranks), and a problem for each text that is none."""
    lead_of = lead_of_ranks(plan)
    return read_texts(plan, [texts if lead_of[rank] == rank else () for rank, texts in enumerate(plan.orders)])


def read_texts(plan: Plan, rows: Sequence[Sequence[str]]) -> tuple[Orders, list[PlanProblem]]:
    """Return the steps of each rank's texts, and a problem for each text that is none."""
    problems: list[PlanProblem] = []
    orders = []
    for rank, texts in enumerate(rows):
        steps = []
        for position, text in enumerate(texts):
            found = _parse(text, rank, position)
            wrong = found if isinstance(found, str) else _misplaced(found, plan)
            if wrong:
                problems.append(PlanProblem("action", f"rank {rank}, action {position} ({text[:40]})", wrong))
            elif isinstance(found, Step):
                steps.append(found)
        orders.append(tuple(steps))
    return tuple(orders), problems


def _parse(text: str, rank: int, position: int) -> Step | str:
    """Return the step that a text represents, or what is wrong with it."""
    if found := _COMPUTE.fullmatch(text):
        return Step(rank, position, found[2], int(found[1]), int(found[3]), -1, text)
    if (found := _TRANSFER.fullmatch(text)) and (found[4] == ">") == found[2].startswith("SEND"):
        return Step(rank, position, found[2], int(found[1]), int(found[3]), int(found[5]), text)
    if found := _CLOSING.fullmatch(text):
        return Step(rank, position, found[2], int(found[1]), -1, -1, text)
    if _SLICED.fullmatch(text):
        return "a sequence slice; plans order whole sequences"
    return "no action of a plan; actions are written as 2F5 (F, B, I, W, R), 2SEND_F5>4, 4RECV_F5<2, 2REDUCE and 2OPT"


def _misplaced(step: Step, plan: Plan) -> str:
    """Return what is wrong with a step's numbers, or nothing."""
    for stage in (step.stage, step.peer):
        if stage >= len(plan.stages):
            return f"stage {stage}; the plan has the stages 0 to {len(plan.stages) - 1}"
    if step.microbatch >= plan.batch.num_microbatches:
        return f"micro-batch {step.microbatch}; the plan has 0 to {plan.batch.num_microbatches - 1}"
    if step.kind in COMPUTE and step.microbatch % plan.stages[step.stage].microbatch_multiple:
        return (
            f"stage {step.stage} works on {plan.stages[step.stage].microbatch_multiple} micro-batches at a time and "
            "names each group by its first"
        )
    return ""
