"""Is a schedule legal? Finds what is wrong with it, and shows where.

Models twelve classes of illegal orders (`CLASSES`), checked against the stage graph alone; memory needs costs.
First each action for itself, then what is there and what is not, then the order on each rank, then across
ranks: links and, with the strictest transport (`simulator.rendezvous`), orders that wait on themselves.
Leaves out time. Needs the standard library alone.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from costmodel.costs import Costs
from costmodel.errors import InvalidInput
from simulator.actions import RECEIVES, SENDS, STAGE_WIDE, Action, Kind
from simulator.dependencies import transfers
from simulator.order_memory import held_bytes
from simulator.rendezvous import is_lowered, partner, peer_rank, waits_for_ever
from simulator.schedule import Schedule
from simulator.schedule_text import marked_grid

MOST_PROBLEMS = 100
"""A file may name a thousand million micro-batches and hold none of them."""

CLASSES = {
    "missing": "an action that the stage graph asks for is not there",
    "duplicated": "an action stands twice",
    "wrong-rank": "an action stands on a rank that is not its stage's, or its stage is not there",
    "backward-before-forward": "B, I or R stands before F of the same micro-batch",
    "weight-before-input": "W stands before I of the same micro-batch",
    "bad-microbatch": "a micro-batch that is not there, or that does not start a group of the stage",
    "bad-slice": "a sequence slice out of range",
    "after-opt": "an action stands after its rank's optimizer step",
    "waits-on-itself": "ranks wait on each other for ever",
    "send-without-receive": "only one end of a transfer is there",
    "link-order": "two ranks disagree on the order of the messages between them",
    "memory": "the order needs more memory than the limit",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at one place of a schedule.

    Attributes
    ----------
    kind : str
        One of `CLASSES`.
    rank, position : int
        The cell; a missing action's is the one behind the rank's last action.
    message : str
        What was found and what is allowed.
    grid : str
        The ranks and steps around it, with the cell marked.
    """

    kind: str
    rank: int
    position: int
    message: str
    grid: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}\n{self.grid}"


def validate_schedule(
    schedule: Schedule, costs: Costs | None = None, memory_limit_bytes: int | None = None
) -> tuple[Problem, ...]:
    """Find what is wrong with a schedule; nothing found means that every list comes to its end.

    Parameters
    ----------
    schedule : Schedule
        Compute orders, closed (REDUCE, OPT) or lowered (SEND, RECV) or neither.
    costs, memory_limit_bytes : optional
        Hold each rank's memory, static part included, against a limit.

    Returns
    -------
    tuple of Problem
        Of what is missing or too many the first hundred; later checks are left out when earlier ones found
        something that would mislead them.

    Raises
    ------
    InvalidInput
        When the number of orders is not that of the ranks.
    """
    if len(schedule.orders) != schedule.graph.num_ranks:
        raise InvalidInput(f"{len(schedule.orders)} orders for {schedule.graph.num_ranks} ranks; give one a rank")
    checks = _Checks(schedule)
    problems = list(checks.each_action())
    problems += islice(checks.presence(), MOST_PROBLEMS)
    problems += checks.order_on_ranks()
    if not problems and is_lowered(schedule):
        problems += checks.links()
    if not problems:
        problems += checks.across_ranks()
    if costs is not None and memory_limit_bytes is not None and not problems:
        problems += checks.memory(costs, memory_limit_bytes)
    return tuple(problems)


class _Checks:
    """One method a check, over one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.graph = schedule.graph
        self.cells = [(rank, i, a) for rank, order in enumerate(schedule.orders) for i, a in enumerate(order)]
        self.place = {(rank, action): i for rank, i, action in self.cells}
        self.present = {action for _, _, action in self.cells}
        self.sound: list[Action] = []
        sliced = {a.stage for a in self.present if a.slice_index >= 0 and a.kind not in SENDS | RECEIVES}
        slices = range(schedule.num_slices) if schedule.num_slices > 1 else (-1,)
        self.pieces = [slices if stage in sliced else (-1,) for stage in range(self.graph.num_stages)]

    def problem(
        self, kind: str, rank: int, position: int, message: str,
        missing: Action | None = None, marks: Collection[tuple[int, int]] = (),
    ) -> Problem:  # fmt: skip
        """Make a problem with its grid."""
        grid = marked_grid(self.schedule.orders, marks or ((rank, position),), missing)
        return Problem(kind, rank, position, f"rank {rank}, step {position}: {message}", grid)

    def lacks(self, rank: int, action: Action, why: str) -> Problem:
        """Make a problem of something that is not there."""
        return self.problem("missing", rank, len(self.schedule.orders[rank]), f"{action} is missing; {why}", action)

    def each_action(self) -> Iterator[Problem]:
        """Stage, micro-batch, slice and rank of each action by itself."""
        for rank, i, action in self.cells:
            found = self._wrong_alone(rank, action)
            if found:
                yield self.problem(found[0], rank, i, found[1])
            else:
                self.sound.append(action)

    def _wrong_alone(self, rank: int, action: Action) -> tuple[str, str] | None:
        graph, last = self.graph, self.schedule.num_microbatches - 1
        transfer = action.kind in SENDS | RECEIVES
        if max(action.stage, action.peer) >= graph.num_stages:
            return "wrong-rank", f"{action} names a stage that is not there; stages are 0 to {graph.num_stages - 1}"
        if rank not in graph.ranks[action.stage]:
            return (
                "wrong-rank",
                f"{action} stands on rank {rank}; stage {action.stage} runs on {graph.ranks[action.stage]}",
            )
        if action.kind in STAGE_WIDE:
            return None
        step = 1 if transfer else graph.multiples[action.stage]
        if not 0 <= action.microbatch <= last or action.microbatch % step:
            return "bad-microbatch", f"{action}: micro-batches are 0 to {last} in steps of {step}"
        pieces = (-1, *range(self.schedule.num_slices)) if transfer else self.pieces[action.stage]
        if action.slice_index not in pieces:
            allowed = (
                f"slices of stage {action.stage} are 0 to {len(pieces) - 1}" if len(pieces) > 1 else "there are none"
            )
            return "bad-slice", f"{action}: {allowed}"
        home = graph.rank_of(action.stage, action.microbatch)
        if home != rank:
            return "wrong-rank", f"{action} stands on rank {rank}; its replica of stage {action.stage} is rank {home}"
        return None

    def presence(self) -> Iterator[Problem]:
        """Each action once, and all that the stage graph asks for."""
        seen: dict[tuple[int, Action], int] = {}
        for rank, i, action in self.cells:
            first = seen.setdefault((rank, action), i)
            if first != i:
                yield self.problem(
                    "duplicated", rank, i, f"{action} stands at step {first} already; each action runs once"
                )
        for stage in range(self.graph.num_stages):
            for k in range(0, self.schedule.num_microbatches, self.graph.multiples[stage]):
                for piece in self.pieces[stage]:
                    yield from self._unit(stage, k, piece)
            yield from self._stage_wide(stage)
        if is_lowered(self.schedule):
            yield from self._transfers()

    def _unit(self, stage: int, k: int, piece: int) -> Iterator[Problem]:
        rank = self.graph.rank_of(stage, k)
        forward, whole, back, weight = (Action(kind, stage, k, piece) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
        if forward not in self.present:
            yield self.lacks(rank, forward, "each stage runs F of every micro-batch")
        there = [action for action in (whole, back, weight) if action in self.present]
        if not self.graph.backward[stage]:
            for action in there:
                at = self.place.get((rank, action), 0)
                yield self.problem("duplicated", rank, at, f"{action}: stage {stage} has no backward; leave it out")
        elif whole in there and len(there) > 1:
            at = self.place.get((rank, there[1]), 0)
            yield self.problem("duplicated", rank, at, f"{there[1]} does again what {whole} does; keep B, or I and W")
        elif not there:
            yield self.lacks(rank, whole, "each stage with a backward runs B, or I and W, of every micro-batch")
        elif whole not in there and len(there) < 2:
            absent = weight if back in there else back
            yield self.lacks(rank, absent, f"{there[0]} does half of the backward")

    def _stage_wide(self, stage: int) -> Iterator[Problem]:
        for kind in (Kind.REDUCE, Kind.OPT):
            action = Action(kind, stage)
            have = [rank for rank in self.graph.ranks[stage] if (rank, action) in self.place]
            for rank in self.graph.ranks[stage]:
                if have and rank not in have:
                    yield self.lacks(rank, action, f"rank {have[0]}, of the same stage, has it")

    def _transfers(self) -> Iterator[Problem]:
        """Both ends of each message that results ask for, and no others."""
        expected: set[Action] = set()
        for action in self.sound:
            for transfer in transfers(self.graph, action, self.present):
                expected |= {transfer.send, transfer.receive}
                ends = ((transfer.sender, transfer.send), (transfer.receiver, transfer.receive))
                absent = [end for end in ends if end not in self.place]
                if len(absent) == 2:
                    yield self.lacks(*absent[0], f"{action} has a result for stage {transfer.send.peer}")
                for rank, end in absent if len(absent) == 1 else ():
                    yield self._half(rank, end)
        for rank, i, action in self.cells:
            if action.kind in SENDS | RECEIVES and action not in expected:
                if partner(action) in self.present:
                    kind, why = "duplicated", "no such message is needed between these stages; leave it out"
                else:
                    kind, why = "send-without-receive", f"nothing stands for it at the other end ({partner(action)})"
                yield self.problem(kind, rank, i, f"{action}: {why}")

    def _half(self, rank: int, absent: Action) -> Problem:
        there, other = partner(absent), peer_rank(self.schedule, absent)
        return self.problem(
            "send-without-receive", other, self.place[other, there],
            f"{there} stands alone; rank {rank} lacks {absent}",
        )  # fmt: skip

    def order_on_ranks(self) -> Iterator[Problem]:
        """F before B, I before W, REDUCE behind its stage's backwards, OPT behind everything."""
        closed: dict[int, int] = {}
        for rank, i, action in self.cells:
            before = {Kind.B: Kind.F, Kind.I: Kind.F, Kind.R: Kind.F, Kind.W: Kind.I}.get(action.kind)
            need = Action(before, action.stage, action.microbatch, action.slice_index) if before else None
            if need and self.place.get((rank, need), -1) > i:
                kind = "weight-before-input" if action.kind is Kind.W else "backward-before-forward"
                yield self.problem(kind, rank, i, f"{action} stands before {need}, whose result it needs")
            if action.kind is Kind.OPT:
                closed.setdefault(rank, i)
            elif rank in closed:
                opt = self.schedule.orders[rank][closed[rank]]
                yield self.problem("after-opt", rank, i, f"{action} stands after {opt}; OPT ends a rank's step")
            yield from self._after_reduce(rank, i, action)

    def _after_reduce(self, rank: int, i: int, action: Action) -> Iterator[Problem]:
        reduced = self.place.get((rank, Action(Kind.REDUCE, action.stage)))
        if reduced is not None and reduced < i and action.kind in (Kind.B, Kind.I, Kind.W):
            message = f"{action} adds to gradients that {action.stage}REDUCE summed at step {reduced}"
            yield self.problem("waits-on-itself", rank, i, message)

    def links(self) -> Iterator[Problem]:
        """Messages from one rank to another in one order at both ends."""
        sent: dict[tuple[int, int], list[tuple[int, Action]]] = {}
        received: dict[tuple[int, int], list[tuple[int, Action]]] = {}
        for rank, i, action in self.cells:
            if action.kind in SENDS:
                sent.setdefault((rank, peer_rank(self.schedule, action)), []).append((i, action))
            elif action.kind in RECEIVES:
                received.setdefault((peer_rank(self.schedule, action), rank), []).append((i, partner(action)))
        for (sender, receiver), out in sorted(sent.items()):
            for (i, send), (j, wanted) in zip(out, received[sender, receiver], strict=True):
                if send != wanted:
                    message = f"{send} is sent where rank {receiver} receives {partner(wanted)} (its step {j})"
                    yield self.problem("link-order", sender, i, message, marks=((sender, i), (receiver, j)))
                    break

    def across_ranks(self) -> Iterator[Problem]:
        """No circle of ranks that wait on each other."""
        circle = waits_for_ever(self.schedule)
        if circle:
            orders = self.schedule.orders
            steps = [f"rank {w.rank} at {orders[w.rank][w.position]} for {w.reason} of rank {w.other}" for w in circle]
            marks = [(w.rank, w.position) for w in circle]
            yield self.problem("waits-on-itself", *marks[0], f"waiting for ever: {'; '.join(steps)}", marks=marks)

    def memory(self, costs: Costs, limit_bytes: int) -> Iterator[Problem]:
        """No rank above the limit; the first action that is."""
        for rank, order in enumerate(self.schedule.orders):
            for i, held in enumerate(held_bytes(self.schedule, costs, rank)):
                if held > limit_bytes:
                    over = f"{order[i]} needs {held} bytes, {held - limit_bytes} above the limit of {limit_bytes}"
                    yield self.problem("memory", rank, i, f"{over}; run backwards earlier or raise the limit")
                    break
