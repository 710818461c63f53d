"""A second engine, by an event queue and in plain Python; it shares no code with the product's engine.

Time moves from event to event. Each rank works through a list of items, each link through a queue of
messages, and whatever was waited for wakes those that wait. It reads the same data types, nothing else.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from costmodel.stages.costs import Amount, Costs
from simulator.actions import Action, Kind
from simulator.schedule import Schedule

BACKWARD = (Kind.B, Kind.I)
COPIES = (Kind.OFFLOAD, Kind.RELOAD)
COMPUTING = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
Unit = tuple[int, int]


class WaitsOnItself(Exception):
    """No event is left, and some rank has work left."""


def units(schedule: Schedule, action: Action) -> set[Unit]:
    """Micro-batches, and slices of them, that an action works on."""
    stop = action.microbatch + schedule.graph.multiples[action.stage]
    pieces = range(schedule.num_slices) if action.slice_index < 0 else (action.slice_index,)
    return {(k, piece) for k in range(action.microbatch, stop) for piece in pieces}


def unit_of(action: Action) -> tuple[int, int, int]:
    """Return stage, micro-batch and slice."""
    return action.stage, action.microbatch, action.slice_index


def item_is_last_send(items: list[Hashable], i: int) -> bool:
    """Whether from item `i` on there are sends on the compute stream and nothing else."""
    return all(isinstance(item, tuple) and item[0] == "send" for item in items[i:])


class Needs:
    """What each compute action needs, unit by unit."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.graph = schedule, schedule.graph
        self.made_by: dict[tuple[int, str, Unit], Action] = {}
        self._found: dict[Action, set[Action]] = {}
        for order in schedule.orders:
            for action in order:
                if action.kind in COMPUTING:
                    letter = "G" if action.kind in BACKWARD else str(action.kind)
                    for unit in units(schedule, action):
                        self.made_by[action.stage, letter, unit] = action

    def of(self, action: Action) -> set[Action]:
        """Return all actions that an action needs."""
        if action not in self._found:
            needs = {need for unit in units(self.schedule, action) for need in self._of_unit(action, unit)}
            self._found[action] = needs - {action}
        return self._found[action]

    def _of_unit(self, action: Action, unit: Unit) -> Iterator[Action]:
        s, (k, piece) = action.stage, unit
        if action.kind is Kind.F:
            yield from (self.made_by[edge.source, "F", unit] for edge in self.graph.edges if edge.target == s)
            yield from self._if_there(s, "F", (k, piece - 1))
            return
        if action.kind is Kind.W:
            yield self.made_by[s, "G", unit]
            return
        yield self.made_by[s, "F", unit]
        if action.kind in BACKWARD:
            yield from self._if_there(s, "R", unit)
            yield from self._if_there(s, "G", (k, piece + 1))
            for edge in self.graph.edges:
                if edge.source == s and edge.gradient and self.graph.backward[edge.target]:
                    yield self.made_by[edge.target, "G", unit]

    def _if_there(self, stage: int, letter: str, unit: Unit) -> Iterator[Action]:
        if (stage, letter, unit) in self.made_by:
            yield self.made_by[stage, letter, unit]


def amount_of(schedule: Schedule, amount: Amount, action: Action) -> int:
    """Return what an action costs, of an amount that may be a list and may be shared by slices."""
    groups = schedule.num_microbatches // schedule.graph.multiples[action.stage]
    group, pieces = action.microbatch // schedule.graph.multiples[action.stage], schedule.num_slices
    if not isinstance(amount, int) and len(amount) == groups * pieces:
        shares = amount[group * pieces : (group + 1) * pieces]
    else:
        whole = amount if isinstance(amount, int) else amount[group]
        shares = tuple(whole // pieces + (1 if i < whole % pieces else 0) for i in range(pieces))
    return sum(shares) if action.slice_index < 0 else shares[action.slice_index]


@dataclass(eq=False)
class Message:
    """A result on its way from one rank to another."""

    source: Action
    target: Action
    sender: int
    receiver: int
    p2p_ns: int
    size_bytes: int
    name: tuple[str, int, int, int, int]
    sent: tuple[int, int] = (-1, -1)
    received: tuple[int, int] = (-1, -1)


@dataclass
class Link:
    """Messages between two ranks, one at a time."""

    queue: list[Message] = field(default_factory=list)
    busy: bool = False


class EventQueueEngine:
    """Runs one step of a schedule; `span` holds (start, end) of each (rank, action) afterwards."""

    def __init__(
        self, schedule: Schedule, costs: Costs, p2p: str, optimizer_mode: str, speeds: Sequence[float]
    ) -> None:
        self.schedule, self.graph, self.costs = schedule, schedule.graph, costs
        self.p2p, self.mode, self.speeds = p2p, optimizer_mode, speeds
        self.now, self._heap, self._count = 0, [], 0
        self.needs = Needs(schedule)
        self.rank_of = {a: r for r, order in enumerate(schedule.orders) for a in order if a.kind in COMPUTING}
        self.span: dict[tuple[int, Action], tuple[int, int]] = {}
        self.facts: set[Hashable] = set()
        self.waiting: dict[Hashable, list[Callable[[], None]]] = defaultdict(list)
        self.links: dict[tuple[int, int], Link] = defaultdict(Link)
        self.collectives: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.issued: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.copies: dict[tuple[int, Kind], list[Action]] = defaultdict(list)
        self.copying: set[tuple[int, Kind]] = set()
        self.back = {unit_of(a): a for order in schedule.orders for a in order if a.kind is Kind.RELOAD}
        self.lowered = any(str(a.kind)[:4] in ("SEND", "RECV") for order in schedule.orders for a in order)
        self.messages = self._messages()
        self.by_name = {message.name: message for message in self.messages}
        self.into: dict[Action, list[Message]] = defaultdict(list)
        self.out: dict[Action, list[Message]] = defaultdict(list)
        for message in self.messages:
            self.into[message.target].append(message)
            self.out[message.source].append(message)
        self.items = [self._items(rank) for rank in range(len(schedule.orders))]
        self.at_item = [0] * len(self.items)
        self.running = [False] * len(self.items)

    def run(self) -> "EventQueueEngine":
        """Run to the end."""
        self._watch_norms()
        for rank in range(len(self.items)):
            self._advance(rank)
        while self._heap:
            self.now, _, act = heapq.heappop(self._heap)
            act()
        if any(at < len(items) for at, items in zip(self.at_item, self.items, strict=True)):
            raise WaitsOnItself
        if any(link.queue for link in self.links.values()) or any(self.collectives.values()):
            raise WaitsOnItself
        return self

    # What there is to do

    def _messages(self) -> list[Message]:
        found = []
        for target, receiver in self.rank_of.items():
            for source in self.needs.of(target):
                sender = self.rank_of[source]
                if sender != receiver and source.stage != target.stage:
                    found.append(self._message(source, target, sender, receiver))
        return found

    def _message(self, source: Action, target: Action, sender: int, receiver: int) -> Message:
        back = target.kind is not Kind.F
        ends = (target.stage, source.stage) if back else (source.stage, target.stage)
        edge = next(e for e in self.costs.edges if (e.source, e.target) == ends)
        shared = units(self.schedule, source) & units(self.schedule, target)
        carried = len({k for k, _ in shared})
        piece = max(source.slice_index, target.slice_index)
        size = edge.size_bytes * carried // self.graph.multiples[edge.source]
        if piece >= 0:
            size //= self.schedule.num_slices
        name = ("B" if back else "F", source.stage, target.stage, min(shared)[0], piece)
        return Message(source, target, sender, receiver, edge.p2p_ns, size, name)

    def _items(self, rank: int) -> list[Hashable]:
        order = list(self.schedule.orders[rank])
        if self.mode != "independent":
            order = [a for a in order if a.kind is not Kind.OPT] + [a for a in order if a.kind is Kind.OPT]
        items: list[Hashable] = []
        with_the_pair: list[Hashable] = []
        for action in order:
            transfer = str(action.kind)[:4] in ("SEND", "RECV")
            if transfer and self.p2p != "links":
                continue
            if self.p2p == "blocking":
                into = self.into[action]
                items += [("receive", x) for x in sorted(into, key=lambda x: (x.source.stage, *x.name[3:]))]
            copied = action.kind in COPIES
            if copied or action.kind is Kind.REDUCE:  # issued as the action before it ends
                sends = next((i for i, item in enumerate(items) if item_is_last_send(items, i)), len(items))
                items.insert(sends, action)
                continue
            items.append(action)
            out = sorted(self.out[action], key=lambda x: (x.target.stage, *x.name[3:]))
            if self.p2p == "blocking":
                items += [("send", x) for x in out]
            elif self.p2p == "links" and not self.lowered:
                issued: list[Hashable] = [("issue", x) for x in out]
                if action in self.schedule.paired:
                    with_the_pair = issued
                else:
                    items += with_the_pair + issued
                    with_the_pair = []
        return items

    def message_of(self, transfer: Action) -> Message:
        """Return the message that a SEND or RECV is about."""
        direction = str(transfer.kind)[-1]
        ends = (transfer.stage, transfer.peer) if "SEND" in transfer.kind else (transfer.peer, transfer.stage)
        return self.by_name[direction, *ends, transfer.microbatch, transfer.slice_index]

    # Time

    def _at(self, time: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, act))

    def _state(self, fact: Hashable) -> None:
        """Make something known, now."""
        if fact in self.facts:
            return
        self.facts.add(fact)
        for wake in self.waiting.pop(fact, ()):
            wake()

    def _lacks(self, facts: Sequence[Hashable], wake: Callable[[], None]) -> bool:
        """Whether some fact is not known yet; if so, be woken by it."""
        for fact in facts:
            if fact not in self.facts:
                self.waiting[fact].append(wake)
                return True
        return False

    def _duration(self, rank: int, action: Action) -> int:
        stage = self.costs.stages[action.stage]
        amount = lambda name: amount_of(self.schedule, getattr(stage, name), action)  # noqa: E731
        apart = any((action.stage, "R", unit) in self.needs.made_by for unit in units(self.schedule, action))
        if action.kind is Kind.F:
            time = amount("forward_ns")
        elif action.kind is Kind.W:
            time = amount("backward_weight_ns")
        elif action.kind is Kind.R:
            time = amount("recompute_ns")
        elif action.kind is Kind.OPT:
            time = stage.optimizer_ns
        else:
            time = amount("backward_input_ns") + (0 if apart else amount("recompute_ns"))
            time += amount("backward_weight_ns") if action.kind is Kind.B else 0
        if self.speeds and self.speeds[rank] != 1:
            return math.floor(time / self.speeds[rank] + 0.5)
        return time

    # Ranks

    def _advance(self, rank: int) -> None:
        """Begin as many of a rank's next items as can begin now."""
        while not self.running[rank] and self.at_item[rank] < len(self.items[rank]):
            item = self.items[rank][self.at_item[rank]]
            wake = lambda: self._advance(rank)  # noqa: E731
            if isinstance(item, tuple):
                begun = self._begin_transfer(rank, item[0], item[1], wake)
            elif item.kind is Kind.REDUCE:
                begun = self._begin_reduce(rank, item)
            elif item.kind in COPIES:
                self.copies[rank, item.kind].append(item)
                self._copy(rank, item.kind)
                begun = True
            elif item.kind in (Kind.SEND_F, Kind.SEND_B):
                begun = self._issue(self.message_of(item))
            elif item.kind in (Kind.RECV_F, Kind.RECV_B):
                begun = self._post(self.message_of(item))
            else:
                begun = self._begin_action(rank, item, wake)
            if not begun:
                return
            self.at_item[rank] += 1

    def _occupy(self, rank: int, time: int, after: Callable[[], None]) -> None:
        self.running[rank] = True

        def end() -> None:
            self.running[rank] = False
            after()
            self._advance(rank)

        self._at(self.now + time, end)

    def _begin_action(self, rank: int, action: Action, wake: Callable[[], None]) -> bool:
        together = [action]
        if action in self.schedule.paired:
            together.append(self.items[rank][self.at_item[rank] + 1])
        facts = [fact for one in together for fact in self._facts_before(rank, one)]
        if self._lacks(facts, wake):
            return False
        begin = self.now

        def after() -> None:
            for one in together:
                self.span[rank, one] = (begin, self.now)
            for one in together:
                self._finished(rank, one)

        self.at_item[rank] += len(together) - 1
        self._occupy(rank, self._together_ns(rank, together), after)
        return True

    def _together_ns(self, rank: int, together: Sequence[Action]) -> int:
        stages = tuple(action.stage for action in together)
        own = [pair.pair_ns for pair in self.costs.pairs if (pair.forward, pair.backward) == stages]
        return own[0] if own else sum(self._duration(rank, action) for action in together)

    def _facts_before(self, rank: int, action: Action) -> list[Hashable]:
        if action.kind is Kind.OPT:
            return self._facts_before_update(rank, action.stage)
        needed = self.needs.of(action)
        home = [need for need in needed if self.rank_of[need] == rank or need.stage == action.stage]
        facts: list[Hashable] = [("done", need) for need in home]
        if action.kind in BACKWARD and unit_of(action) in self.back:
            facts.append(("copied", self.back[unit_of(action)]))
        if self.p2p != "blocking":
            facts += [("arrived", need, action) for need in needed if need not in home]
        return facts

    def _copy(self, rank: int, kind: Kind) -> None:
        """Start the copy at the head of a direction if it can start."""
        stream = (rank, kind)
        if stream in self.copying or not self.copies[stream]:
            return
        action = self.copies[stream][0]
        source = Kind.F if kind is Kind.OFFLOAD else Kind.OFFLOAD
        fact = "done" if source is Kind.F else "copied"
        if self._lacks([(fact, replace(action, kind=source))], lambda: self._copy(rank, kind)):
            return
        self.copying.add(stream)
        begin = self.now

        def end() -> None:
            self.copying.remove(stream)
            self.copies[stream].pop(0)
            self.span[rank, action] = (begin, self.now)
            self._state(("copied", action))
            self._copy(rank, kind)

        length = amount_of(self.schedule, self.costs.stages[action.stage].offload_ns, action)
        self._at(self.now + length, end)

    def _facts_before_update(self, rank: int, stage: int) -> list[Hashable]:
        mine = [a for a in self.schedule.orders[rank] if a.kind is Kind.REDUCE and a.stage == stage]
        facts: list[Hashable] = [("reduced", a) for a in mine]
        if self.mode == "global-norm":
            facts += self._all_gradients(None)
        if self.mode == "post-validated":
            facts += [("norm", edge.source, stage) for edge in self.graph.edges if edge.target == stage]
        return facts

    def _all_gradients(self, stage: int | None) -> list[Hashable]:
        """All backwards and reductions, of one stage or of all; of all: forwards too, which ranks may end with."""
        facts: list[Hashable] = []
        for order in self.schedule.orders:
            for a in order:
                if stage is not None and (a.stage != stage or a.kind is Kind.F or a.kind is Kind.R):
                    continue
                if a.kind in COMPUTING:
                    facts.append(("done", a))
                elif a.kind is Kind.REDUCE:
                    facts.append(("reduced", a))
        return facts

    def _finished(self, rank: int, action: Action) -> None:
        self._state(("done", action))
        if self.p2p == "latency":
            for message in self.out[action]:
                message.sent = message.received = (self.now, self.now + message.p2p_ns)
                self._arrive_at(self.now + message.p2p_ns, message)

    def _arrive_at(self, time: int, message: Message) -> None:
        self._at(time, lambda: self._state(("arrived", message.source, message.target)))

    # Messages

    def _begin_transfer(self, rank: int, what: str, message: Message, wake: Callable[[], None]) -> bool:
        if what == "issue":
            return self._issue(message)
        if what == "receive" and self._lacks([("sent", message)], wake):
            return False
        begin = self.now

        def after() -> None:
            if what == "send":
                message.sent = (begin, self.now)
                self._state(("sent", message))
            else:
                message.received = (begin, self.now)

        self._occupy(rank, message.p2p_ns, after)
        return True

    def _issue(self, message: Message) -> bool:
        link = self.links[message.sender, message.receiver]
        link.queue.append(message)
        self._serve(link)
        return True

    def _post(self, message: Message) -> bool:
        self._state(("posted", message))
        return True

    def _serve(self, link: Link) -> None:
        """Start the message at the head of a link if it can start."""
        if link.busy or not link.queue:
            return
        message = link.queue[0]
        facts: list[Hashable] = [("done", message.source)] + ([("posted", message)] if self.lowered else [])
        if self._lacks(facts, lambda: self._serve(link)):
            return
        link.busy = True
        begin = self.now

        def end() -> None:
            link.busy = False
            link.queue.pop(0)
            message.sent = message.received = (begin, self.now)
            self._state(("arrived", message.source, message.target))
            self._serve(link)

        self._at(self.now + message.p2p_ns, end)

    # The end of the step

    def _begin_reduce(self, rank: int, action: Action) -> bool:
        key = (action.stage, action.microbatch)
        members = {r for r, order in enumerate(self.schedule.orders) if action in order}
        self.issued[key].add(rank)
        self.collectives[rank].append(key)
        self._collect(action, members)
        return True

    def _collect(self, action: Action, members: set[int]) -> None:
        key = (action.stage, action.microbatch)
        if self.issued[key] == members and all(self.collectives[r][0] == key for r in members):
            self.issued[key] = set()
            self._reduce(action, members)

    def _reduce(self, action: Action, members: set[int]) -> None:
        begin = self.now

        def end() -> None:
            for rank in members:
                self.span[rank, action] = (begin, self.now)
                self.collectives[rank].pop(0)
            self._state(("reduced", action))
            for rank in members:
                self._advance(rank)
                if self.collectives[rank]:
                    stage, k = self.collectives[rank][0]
                    following = Action(Kind.REDUCE, stage, k)
                    self._collect(following, {r for r, o in enumerate(self.schedule.orders) if following in o})

        self._at(self.now + self.costs.stages[action.stage].reduce_ns, end)

    def _watch_norms(self) -> None:
        if self.mode == "post-validated":
            for stage in range(self.graph.num_stages):
                self._norm(stage)

    def _norm(self, stage: int) -> None:
        """Pass on the partial norm of a stage once it is known."""
        facts = [("norm", edge.source, stage) for edge in self.graph.edges if edge.target == stage]
        if self._lacks(facts + self._all_gradients(stage), lambda: self._norm(stage)):
            return
        for edge in self.costs.edges:
            if edge.source == stage:
                same = self.graph.ranks[stage] == self.graph.ranks[edge.target]
                later = self.now + (0 if same else edge.p2p_ns)
                self._at(later, lambda to=edge.target: self._state(("norm", stage, to)))

    # Memory

    def memory(self, rank: int) -> list[int]:
        """Return the bytes that a rank holds after each change, from the static part on."""
        level = sum(
            s.static_bytes for s, ranks in zip(self.costs.stages, self.graph.ranks, strict=True) if rank in ranks
        )
        changes: list[tuple[int, int, int]] = []
        for action in self.schedule.orders[rank]:
            if action.kind in COMPUTING:
                taken, freed = self._held(rank, action)
                begin, end = self.span[rank, action]
                changes += [(begin, 1, taken), (end, 1, -freed)]
            elif action.kind in COPIES:
                size = amount_of(self.schedule, self.costs.stages[action.stage].activation_bytes, action)
                begin, end = self.span[rank, action]
                changes.append((end, 0, -size) if action.kind is Kind.OFFLOAD else (begin, 2, size))
        for message in self.messages:
            changes += self._buffered(rank, message)
        levels = [level]
        for *_, change in sorted(changes, key=lambda c: c[:2]):
            level += change
            levels.append(level)
        return levels

    def _held(self, rank: int, action: Action) -> tuple[int, int]:
        """What an action takes at its start and frees at its end."""
        stage, there = self.costs.stages[action.stage], self.needs.made_by
        mine = units(self.schedule, action)
        size = lambda of: amount_of(self.schedule, stage.activation_bytes, of)  # noqa: E731
        kept = lambda of: amount_of(self.schedule, stage.weight_activation_bytes, of)  # noqa: E731
        unit = min(mine)
        again = there.get((action.stage, "R", unit))
        if action.kind is Kind.F:
            if again:
                return self._inputs(rank, action), 0
            return size(action), 0 if (action.stage, "G", unit) in there else size(action)
        if action.kind is Kind.R:
            return size(action), self._inputs(rank, there[action.stage, "F", unit])
        if action.kind is Kind.W:
            return 0, kept(action)
        if action.kind is Kind.I and (action.stage, "W", unit) in there:
            return 0, size(action) - kept(action)
        return 0, size(action)

    def _inputs(self, rank: int, forward: Action) -> int:
        """Bytes that a forward reads from stages of its own rank."""
        total, per = 0, self.graph.multiples
        for edge in self.costs.edges:
            if edge.target == forward.stage:
                sources = self.graph.ranks[edge.source]
                if sources[forward.microbatch // per[edge.source] % len(sources)] == rank:
                    size = edge.size_bytes * per[edge.target] // per[edge.source]
                    total += size if forward.slice_index < 0 else size // self.schedule.num_slices
        return total

    def _buffered(self, rank: int, message: Message) -> Iterator[tuple[int, int, int]]:
        reader = message.target
        again = self.needs.made_by.get((reader.stage, "R", min(units(self.schedule, reader))))
        if reader.kind is Kind.F and again:
            reader = again
        holds = []
        if rank == message.sender:
            holds.append((self.span[rank, message.source][1], message.sent[1]))
        if rank == message.receiver:
            holds.append((message.received[0], self.span[rank, reader][1]))
        for begin, end in holds:
            if end > begin:
                yield begin, 2, message.size_bytes
                yield end, 0, -message.size_bytes
