"""What rivals promise: the best of their own objective, as a brute force that shares no code with them finds it.

Sums over pieces, bytes and messages are taken from the profile by hand; every chain of pieces and every way to run
them is gone through. Only the price of a whole stage's once-a-step work comes from the cost model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, product
from math import inf
from random import Random

import numpy as np

from costmodel.model.graph import Tensor
from costmodel.stages.config import StageConfig
from planner.answer.decide import plan
from planner.candidate.candidate import Candidate
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.budget import Deadline
from planner.search.published import alpa, pipedream, piper
from planner.search.published.pieces import Pieces
from planner.search.published.prices import Holdings, View, Ways
from planner.search.published.proposals import ProposedStage, partition_of, places_of
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem
from tests.support.random_profiles import random_profile, with_shared_storages

Piece = frozenset[int]
TimeOf = Callable[["ByHand", Piece, int, bool], float]
CLOSE = 1e-6


def random_view(rng: Random, largest: int = 8, most_devices: int = 5) -> View:
    """A random graph on some devices, at one micro-batch size."""
    profile = random_profile(rng, rng.randint(3, largest), latency_ns=rng.choice((0, 200, 3000)))
    if rng.random() < 0.5:
        profile = with_shared_storages(rng, profile)
    problem = Problem(
        profile, None, rng.randint(2, most_devices), rng.choice((4, 8)), microbatch_size=rng.choice((1, 2)),
        optimizer=rng.choice(("none", "adam")), effort=Effort(600.0, 0.0), target="executor",
        space=Space(zero=0), memory_limit_bytes=1 << 20,  # bytes are counted one by one
    )  # fmt: skip
    return View(PreparedProblem(problem), problem.microbatch_size or 1)


class ByHand:
    """What a piece takes and holds, operator by operator; operators are the atoms of these graphs."""

    def __init__(self, view: View) -> None:
        self.view, self.graph = view, view.prepared.problem.profile.graph
        self.measured = view.prepared.problem.measured(view.microbatch_size)
        assert len(view.atoms) == len(self.graph.operators)

    def cuts(self, replicas: int) -> FamilyPartitions:
        return self.view.prepared.cuts(Family(StageConfig(data=replicas), self.view.microbatch_size))

    def own_ns(self, piece: Piece, replicas: int, remade: bool) -> float:
        """Work of a micro-batch over the replicas, and the piece's part of what is done once a step."""
        paces, closing = self.cuts(1).paces_ns, self.cuts(replicas).closing_ns
        once = sum(closing[i] for i in piece) / self.view.num_microbatches
        again = sum(self.measured.forward_ns[i] for i in piece) if remade else 0
        return (sum(paces[i] for i in piece) + again) / replicas + once

    def received(self, piece: Piece) -> float:
        """Bytes of the tensors that come from outside."""
        return float(sum(self._bytes(t) for t in self.graph.tensors
                         if self._at(t.producer) not in piece and piece & set(map(self._at, t.consumers))))  # fmt: skip

    def sent(self, piece: Piece) -> float:
        """Bytes of the tensors that go outside."""
        return float(sum(self._bytes(t) for t in self.graph.tensors
                         if self._at(t.producer) in piece and set(map(self._at, t.consumers)) - piece))  # fmt: skip

    def message_ns(self, size: float) -> float:
        latency, each = self.view.link
        return latency + size * each if size else 0.0

    def fits(self, piece: Piece, replicas: int, in_flight: int, remade: bool, most: float) -> bool:
        """Whether a piece fits; what it holds comes from the tables, which the bounds' tests hold to the profile."""
        start = frozenset(a for i in piece for a in range(len(self.view.atoms)) if self._leads(a, i)) - piece
        pieces = Pieces(np.array([[a in held for a in range(len(self.view.atoms))] for held in (start, start | piece)]))
        ways = Ways(
            self.view, pieces, StageConfig(recompute="full" if remade else "none"), 0, Holdings(self.view, pieces)
        )
        held = ways.static_bytes(replicas)[0, 1] + in_flight * ways.activation_bytes[0, 1]
        return bool(held <= most)

    def _leads(self, first: int, last: int) -> bool:
        return first == last or bool(self.view.atoms.descendants[first] >> last & 1)

    def _bytes(self, tensor: Tensor) -> int:
        return self.measured.tensor_bytes(tensor)

    def _at(self, name: str) -> int:
        return self.graph.index[name]


def chains(parts: Sequence[Piece], most: int = 1 << 30) -> Iterator[list[Piece]]:
    """Yield every chain of at most so many pieces from nothing to all through nested sets, the first first."""

    def onward(start: Piece, left: int) -> Iterator[list[Piece]]:
        if start == parts[-1]:
            yield []
        elif left:
            for stop in parts if left > 1 else parts[-1:]:
                if start < stop:
                    for rest in onward(stop, left - 1):
                        yield [stop - start, *rest]

    yield from onward(frozenset(), most)


def downsets_of(view: View) -> list[Piece]:
    """Return all sets that hold what leads to what they hold."""
    count = len(view.atoms)
    every = (frozenset(row) for size in range(count + 1) for row in combinations(range(count), size))
    return [held for held in every if all(a in held for a, b in view.atoms.edges if b in held)]


def prefixes_of(order: Iterable[int]) -> list[Piece]:
    """Return the sets along an order."""
    found: list[Piece] = [frozenset()]
    for atom in order:
        found.append(found[-1] | {atom})
    return found


Way = tuple[int, bool]
"""Replicas, and whether forwards are run again."""


def slowest(view: View, parts: Sequence[Piece], ways: Sequence[Way], time_ns: TimeOf, most_bytes: float) -> float:
    """Return the least time of the slowest stage over all chains and ways; infinite where nothing fits."""
    hand, best = ByHand(view), inf
    for chain in chains(parts):
        for chosen in product(ways, repeat=len(chain)):
            replicas = [count for count, _ in chosen]
            if sum(replicas) > view.num_devices:
                continue
            times = [time_ns(hand, piece, *way) for piece, way in zip(chain, chosen, strict=True)]
            if max(times) < best and _all_fit(hand, chain, chosen, most_bytes):
                best = max(times)
    return best


def _all_fit(hand: ByHand, chain: Sequence[Piece], chosen: Sequence[Way], most_bytes: float) -> bool:
    counts = [count for count, _ in chosen]
    flying = [-(-sum(counts[i:]) // counts[i]) for i in range(len(counts))]
    rows = zip(chain, chosen, flying, strict=True)
    return all(hand.fits(piece, count, each, remade, most_bytes) for piece, (count, remade), each in rows)


def pipedream_ns(hand: ByHand, piece: Piece, replicas: int, remade: bool) -> float:
    """Own work, or the boundary before it."""
    boundary = 2 * hand.message_ns(hand.received(piece)) / replicas
    return max(hand.own_ns(piece, replicas, remade), boundary)


def piper_ns(hand: ByHand, piece: Piece, replicas: int, remade: bool) -> float:
    """Own work and what crosses the piece's border."""
    crossing = hand.message_ns(hand.received(piece)) + hand.message_ns(hand.sent(piece))
    return hand.own_ns(piece, replicas, remade) + 2 * crossing / replicas


def least_sum(view: View, ways: Sequence[Way], most_bytes: float) -> float:
    """Return the least sum of all stages and m - 1 slowest ones, over all cuts of the order and ways."""
    hand, best, count = ByHand(view), inf, view.num_microbatches
    for chain in chains(prefixes_of(range(len(view.atoms)))):
        for chosen in product(ways, repeat=len(chain)):
            if sum(replicas for replicas, _ in chosen) > view.num_devices:
                continue
            times = [hand.own_ns(piece, *way) for piece, way in zip(chain, chosen, strict=True)]
            total = sum(times) + (count - 1) * max(times)
            if total < best and all(
                hand.fits(piece, replicas, len(chain) - place, remade, most_bytes)
                for place, (piece, (replicas, remade)) in enumerate(zip(chain, chosen, strict=True))
            ):
                best = total
    return best


def random_bytes(rng: Random, view: View) -> float:
    """Return a memory limit that often binds."""
    whole = view.prepared.families.states_bytes(Family(StageConfig(), view.microbatch_size))
    return rng.choice((inf, whole * rng.uniform(0.1, 1.2)))


def pipedream_failure(rng: Random) -> str:
    """Compare PipeDream's slowest stage."""
    view = random_view(rng)
    most_bytes = random_bytes(rng, view)
    found = pipedream.propose(view, most_bytes, Deadline(600))
    ways = [(count, False) for count in view.replicas]
    best = slowest(view, prefixes_of(view.prepared.orders[0]), ways, pipedream_ns, most_bytes)
    return _differs(view, found, pipedream_ns, best)


def piper_failure(rng: Random) -> str:
    """Compare Piper's slowest stage, over all downsets and with forwards run again."""
    view = random_view(rng, largest=6, most_devices=4)
    most_bytes = random_bytes(rng, view)
    found = piper.propose(view, most_bytes, Deadline(600))
    ways = [(count, remade) for count in view.replicas for remade in (False, True)]
    return _differs(view, found, piper_ns, slowest(view, downsets_of(view), ways, piper_ns, most_bytes))


def _differs(view: View, found: Sequence[ProposedStage] | None, time_ns: TimeOf, best: float) -> str:
    """Say how a proposal differs from the best that there is: infinite where nothing fits."""
    if found is None:
        return "" if best == inf else f"nothing, and {best} fits"
    hand = ByHand(view)
    worst = max(time_ns(hand, frozenset(s.atoms), s.config.data, s.config.recompute == "full") for s in found)
    return "" if abs(worst - best) <= CLOSE * best else f"{worst}, the best is {best}"


def alpa_failure(rng: Random) -> str:
    """Compare Alpa's sum of stages and slowest one."""
    view = random_view(rng, largest=6, most_devices=4)
    most_bytes, count = random_bytes(rng, view), view.num_microbatches
    found = alpa.propose(view, most_bytes, Deadline(600))
    slices = [replicas for replicas in view.replicas if alpa.is_slice(view, replicas)]
    ways = [(replicas, remade) for replicas in slices for remade in (False, True)]
    best = least_sum(view, ways, most_bytes)
    if found is None:
        return "" if best == inf else f"nothing, and {best} fits"
    hand = ByHand(view)
    times = [hand.own_ns(frozenset(s.atoms), s.config.data, s.config.recompute == "full") for s in found]
    total = sum(times) + (count - 1) * max(times)
    return "" if abs(total - best) <= CLOSE * best else f"{total}, the best is {best}"


def chain_failure(rng: Random) -> str:
    """Compare the chain planner's step with the best of all lines of up to three stages, simulated."""
    profile = random_profile(rng, rng.randint(4, 12), latency_ns=rng.choice((0, 200, 3000)))
    problem = Problem(
        profile, None, rng.randint(2, 3), rng.choice((4, 8)), microbatch_size=1, space=Space(data=1, recompute="none"),
        optimizer=rng.choice(("none", "adam")), planner="chain", effort=Effort(60.0, 0.5), target="executor",
    )  # fmt: skip
    view = View(PreparedProblem(problem), 1)
    found, best = plan(problem).search.best_step_time_ns, inf
    for chain in chains(downsets_of(view), problem.num_devices):
        stages = [ProposedStage(tuple(sorted(piece)), StageConfig()) for piece in chain]
        for schedule in problem.schedules:
            candidate = Candidate(partition_of(view, stages), places_of(stages), 1, schedule, line=True)
            best = min(best, view.evaluator.evaluate(candidate).step_time_ns)
    return "" if found <= best else f"{found}, the best line is {best}: {found / best - 1:.2%} more"


FAILURES = {"pipedream": pipedream_failure, "piper": piper_failure, "alpa": alpa_failure, "chain": chain_failure}


def failures(num_cases: int) -> list[str]:
    """Return a line for each problem that a rival does not solve as brute force does."""
    names = list(FAILURES)
    found = ((names[seed % 4], seed, FAILURES[names[seed % 4]](Random(seed))) for seed in range(num_cases))
    return [f"{name}, seed {seed}: {text}" for name, seed, text in found if text]
