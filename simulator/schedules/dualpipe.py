"""`dualpipe`: two pipelines in opposite directions, each forward overlapping a backward of the other.

Every rank has a stage of both, so two copies of the parameters; micro-batches take the directions in turn. The
order has eight steps, which `dualpipe-v` shares: it folds the same line, so that the second pipeline is the way
back of the first. Models no time: how long a forward and the backward that overlaps it take as an overlapped pair is a
matter of costs, and without such a time they run one after the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from costmodel.errors import UsageError
from simulator.actions import Action, Kind
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind, Uniform
from simulator.schedules.placement import two_way


def orders(request: Request) -> Orders:
    """Return the order of each rank.

    Raises
    ------
    UsageError
        When there are fewer than 2 p micro-batches, or the stages are not placed both ways.
    """
    ranks = two_way("dualpipe", request.graph, request.num_microbatches)
    check_enough("dualpipe", len(ranks), request.num_microbatches)
    return tuple(eight_steps(place.stages, place.microbatches, place.distance, place.half) for place in ranks)


def check_enough(name: str, num_ranks: int, num_microbatches: int) -> None:
    """Refuse fewer than 2 p micro-batches, for which the eight steps do not exist."""
    if num_microbatches < 2 * num_ranks:
        raise UsageError(
            f"{name} on {num_ranks} ranks needs {2 * num_ranks} micro-batches or more, not {num_microbatches}; take "
            "more, or zb-v"
        )


@dataclass(slots=True)
class _Row:
    """The order of one rank as it grows: `near` and `far` pipeline are 0 and 1."""

    stages: Sequence[int]
    microbatches: Sequence[Sequence[int]]
    order: list[Action] = field(default_factory=list)
    late: list[Action] = field(default_factory=list)
    ahead: list[int] = field(default_factory=lambda: [0, 0])
    back: list[int] = field(default_factory=lambda: [0, 0])

    def forward(self, way: int) -> None:
        self.order.append(Action(Kind.F, self.stages[way], self.microbatches[way][self.ahead[way]]))
        self.ahead[way] += 1

    def backward(self, way: int, *, split: bool = False) -> None:
        stage, microbatch = self.stages[way], self.microbatches[way][self.back[way]]
        self.order.append(Action(Kind.I if split else Kind.B, stage, microbatch))
        self.back[way] += 1
        if split:
            self.late.append(Action(Kind.W, stage, microbatch))

    def weight(self) -> None:
        self.order.append(self.late.pop(0))


def eight_steps(
    stages: Sequence[int], microbatches: Sequence[Sequence[int]], distance: int, length: int
) -> tuple[Action, ...]:
    """Return the order of one rank.

    Parameters
    ----------
    stages : sequence of int
        Its stage of the pipeline that enters at the near end, and of the one that comes back from the far end.
    microbatches : sequence of sequence of int
        The micro-batches of both.
    distance, length : int
        How many ranks the near end is away, and how many ranks there are between near end and turn.
    """
    row = _Row(stages, microbatches)
    behind, here = length - 1 - distance, distance + 1
    for _ in range(2 * behind):
        row.forward(0)
    for _ in range(here):
        row.forward(0)
        row.forward(1)
    for _ in range(behind):
        row.backward(1, split=True)
        row.weight()
        row.forward(1)
    for _ in range(len(microbatches[0]) - 2 * length + here):
        row.forward(0)
        row.backward(1)
        row.forward(1)
        row.backward(0)
    for _ in range(behind):
        row.backward(1)
        row.forward(1)
        row.backward(0)
    _drain(row, behind, here)
    return tuple(row.order)


def _drain(row: _Row, behind: int, here: int) -> None:
    """Add the last three steps; from their middle on weight gradients are put off."""
    for done in range(2 * here):
        row.backward(1 - done % 2, split=done >= here)
    for _ in range(behind):
        row.weight()
        row.backward(0, split=True)
    while row.late:
        row.weight()


def overlapped(orders: Orders) -> Iterator[Action]:
    """Yield each forward directly before a whole backward: the two overlap.

    Not so at the turn, where the first backward waits for a forward that has just ended: there the pair would only
    start later (DeepSeek's own order makes the same exception).
    """
    for order in orders:
        first = next((i for i, action in enumerate(order) if action.kind is not Kind.F), 0)
        for i, (ahead, back) in enumerate(pairwise(order)):
            if ahead.kind is Kind.F and back.kind is Kind.B and i + 1 != first:
                yield ahead


def long_enough(u: Uniform) -> bool:
    """W <= I <= F, edges that take no time, and 2 p micro-batches or more."""
    return u.p2p == 0 and u.backward_weight <= u.backward_input <= u.forward and u.microbatches >= 2 * u.ranks


KIND = ScheduleKind(
    name="dualpipe",
    placement="two-way",
    split=True,
    description="Two opposite pipelines whose forwards and backwards alternate: two copies of the parameters",
    source="DeepSeek-AI, DeepSeek-V3 technical report, 2024 (arXiv:2412.19437), section 3.2",
    orders=orders,
    bubble=ClosedForm(
        "(p / 2 - 1) (F + I - W)",
        "a pair takes F + B, c = 0, m >= 2 p and W <= I <= F",
        lambda u, _: (u.ranks // 2 - 1) * (u.forward + u.backward_input - u.backward_weight),
        long_enough,
    ),
    overlapped=overlapped,
    peak=ClosedForm("p + 1", "m >= 2 p", lambda u, _: u.ranks + 1, lambda u: u.microbatches >= 2 * u.ranks),
)
