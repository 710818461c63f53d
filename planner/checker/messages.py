"""Do the ranks' sends and receives fit together, and can they all go through.

The unit of a message is the range of micro-batches that a producer's and a consumer's group share; both
ends name it by the first micro-batch of that range. Between ranks a message must be sent once and
received once, in the same order at both ends of a directed pair of ranks. Leaves out how long it takes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.checker.orders import Key, backward_of
from planner.checker.problem import PlanProblem
from planner.checker.steps import TRANSFERS, Layout, Step

Orders = Sequence[Sequence[Step]]


@dataclass(frozen=True, slots=True)
class Message:
    """What one rank must send another: `kind` F or B, from a stage's group to another's, named by `microbatch`."""

    kind: str
    source: int
    target: int
    microbatch: int
    source_group: int
    target_group: int
    sender: int
    receiver: int

    @property
    def send(self) -> tuple[int, str]:
        """Sending rank and the text of its action."""
        return self.sender, f"{self.source}SEND_{self.kind}{self.microbatch}>{self.target}"

    @property
    def receive(self) -> tuple[int, str]:
        """Receiving rank and the text of its action."""
        return self.receiver, f"{self.target}RECV_{self.kind}{self.microbatch}<{self.source}"


def needed_messages(layout: Layout) -> Iterator[Message]:
    """Yield every message that the edges ask for; nothing is sent within a rank."""
    for source, target in layout.edges:
        for mine, theirs in layout.meetings(source, target):
            sender, receiver = layout.rank_of(source, mine), layout.rank_of(target, theirs)
            if sender != receiver:
                name = max(mine, theirs)
                yield Message("F", source, target, name, mine, theirs, sender, receiver)
                if (source, target) in layout.gradients:
                    yield Message("B", target, source, name, theirs, mine, receiver, sender)


def message_problems(layout: Layout, orders: Orders) -> Iterator[PlanProblem]:
    """Yield sends and receives that are missing, occur twice or that nothing asks for."""
    found = Counter((step.rank, step.text) for order in orders for step in order if step.kind in TRANSFERS)
    needed = {end for message in needed_messages(layout) for end in (message.send, message.receive)}
    for rank, text in sorted(needed - set(found)):
        yield PlanProblem("message", f"rank {rank}", f"{text} is missing")
    for (rank, text), count in found.items():
        if (rank, text) not in needed:
            yield PlanProblem(
                "message", f"rank {rank}", f"{text} is asked for by no edge between this rank and another"
            )
        elif count > 1:
            yield PlanProblem("message", f"rank {rank}", f"{text} occurs {count} times; once is right")


def data_problems(layout: Layout, orders: Orders, computed: Mapping[Key, Step]) -> Iterator[PlanProblem]:
    """Yield sends before their data is there and receives after their data is needed."""
    at = {(step.rank, step.text): step for order in orders for step in order if step.kind in TRANSFERS}
    for message in needed_messages(layout):
        send, receive = at[message.send], at[message.receive]
        if message.kind == "F":
            made = computed["F", message.source, message.source_group]
            read = computed["F", message.target, message.target_group]
        else:
            made = backward_of(computed, message.source, message.source_group)
            read = backward_of(computed, message.target, message.target_group)
        if send.position < made.position:
            yield PlanProblem("order", send.place, f"comes before {made.text}, which computes what it sends")
        if receive.position > read.position:
            yield PlanProblem("order", receive.place, f"comes after {read.text}, which needs what it receives")


def pairing_problems(orders: Orders, peers: Mapping[tuple[int, str], tuple[int, str]]) -> Iterator[PlanProblem]:
    """Yield directed pairs of ranks whose sends and receives are in different orders.

    `peers` gives the other end of each transfer.
    """
    queues: dict[tuple[int, int], list[str]] = {}
    received: dict[tuple[int, int], list[str]] = {}
    for step in (step for order in orders for step in order if step.kind in TRANSFERS):
        other, text = peers[step.rank, step.text]
        if step.kind.startswith("SEND"):
            queues.setdefault((step.rank, other), []).append(text)
        else:
            received.setdefault((other, step.rank), []).append(step.text)
    for (sender, receiver), sent in queues.items():
        for position, (first, second) in enumerate(zip(sent, received[sender, receiver], strict=True)):
            if first != second:
                yield PlanProblem(
                    "message",
                    f"rank {sender} to rank {receiver}",
                    f"message {position} is sent for {first} and received as {second}; both ends need one order",
                )
                break


def other_ends(layout: Layout) -> dict[tuple[int, str], tuple[int, str]]:
    """Return for each transfer (rank, text) the one at the other end."""
    ends: dict[tuple[int, str], tuple[int, str]] = {}
    for message in needed_messages(layout):
        ends[message.send] = message.receive
        ends[message.receive] = message.send
    return ends
