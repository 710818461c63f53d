"""The first look at a family: balanced cuts into every number of places that could matter, simulated.

Equally many layers a stage where the model has such, and the best segments of two orders by work alone. A cut is left
out when a bound that needs no simulation says that it is no better than what is known of its rung, or that it cannot
fit. Leaves out any local change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from itertools import groupby

from costmodel.errors import NoPlanFits, UsageError
from costmodel.stages.costs import StageCost, least
from planner.ask.problem import AUTO_LOOPED
from planner.candidate.evaluate import Evaluated
from planner.candidate.price import Priced
from planner.graph.atoms import Partition, numbered
from planner.plan.rung import strategy_of
from planner.search.balanced import balanced
from planner.search.cuts import Cuts, by_stage
from planner.search.family import Family
from planner.search.incumbent import Incumbent
from planner.search.limits import Limits
from planner.search.setting import FUSED, Setting
from planner.search.writing import Writing

NUM_ORDERS = 2
FAR, WORTH = 1.1, 0.9
"""From this part of the best time on a rung is far from it; there a plan is worth looking for that takes this part."""
INPUTS = 1 / 16
"""About the part of what a layer keeps that its inputs are, which stay where its forward runs again."""
CAUTIOUS, BOLD = 0.8, 1.1
"""Part of the memory that even stages may fill and be likely to fit, before anything does and then: real stages are not
even, and what holds less takes longer."""
LOOPED = 0.97
"""Part of the closed form of interleaved stages below which no uneven cut was seen."""


class Screen:
    """Looks at families one by one and tells the incumbent."""

    def __init__(self, setting: Setting, incumbent: Incumbent, limits: Limits, writing: Writing) -> None:
        self.setting, self.incumbent, self.limits, self.writing = setting, incumbent, limits, writing
        self.left_out: dict[tuple[Family, int], int] = {}
        """Families, into how many places, whose plans would take too long to be written, and about how many actions."""
        self._fit: list[bool] = []
        """Whether each that was simulated here fits: an old plan that the search starts from says nothing of others."""
        self._branched = 1.0
        """How many actions plans have at most for one that stages in a line would."""
        self._settled: set[tuple[Family, int] | None] = set()
        self._too_slow: list[Partition] = []
        self._most_bytes = max(setting.problem.memory_limits_bytes)
        if not all(setting.problem.memory_limits_bytes):
            self._most_bytes = 0

    def look(self, family: Family) -> None:
        """Offer the incumbent what balanced cuts of a family bring."""
        bound_ns = self.setting.bound_ns(family)
        if bound_ns is None or not any(self._could_matter(family, bound_ns, places) for places in (1, 2)):
            return
        cuts, least = self.setting.cuts(family), 0
        for places in self._places(cuts):
            if self.limits.over and self.incumbent.best_fits:
                return
            if 1 < places < least:
                continue
            least_ns = self._even_ns(family, places)
            if not self._could_matter(family, least_ns, places) or not self._could_fit(family, places):
                least = places  # fewer places take longer still, and hold more; one alone is another rung
                continue
            if self._without_savings(family, places) in self._settled:
                continue
            if not self._could_matter(family, self._expected_ns(family, places), places):
                self._settled.add((family, places))
                continue
            num_actions = round(about_actions(cuts, places) * self._branched)
            if self.writing.fits(num_actions, family.config.data):
                self._look(cuts, places)
            else:
                self.left_out[family, places] = num_actions

    def look_at_long(self) -> None:
        """Where nothing else was found, or fits, offer what takes long to be written, the shortest first."""
        for family, places in sorted(self.left_out, key=self.left_out.__getitem__):
            if self.incumbent.best_fits:
                return
            self._look(self.setting.cuts(family), places)

    def _look(self, cuts: Cuts, places: int) -> None:
        open_before = len(self._too_slow)
        partitions = list(dict.fromkeys(self._partitions(cuts, places)))
        found = [each for partition in partitions for each in self._offered(cuts, partition)]
        self._branched = max([self._branched, *(each.num_actions / about_actions(cuts, places) for each in found)])
        if any(each.fits for each in found) or len(self._too_slow) - open_before == len(partitions):
            self._settled.add((cuts.family, places))

    @staticmethod
    def _without_savings(family: Family, places: int) -> tuple[Family, int] | None:
        """Return what a family is without recompute and offload, which only cost time; None for one that has neither.

        Where that fits, or is too slow already, there is nothing to save.
        """
        config = replace(family.config, recompute="none", offload="none")
        return (replace(family, config=config), places) if config != family.config else None

    def _expected_ns(self, family: Family, places: int) -> int:
        """Return a bound on all cuts into so many places; a guess, nearly always below, for stages that share one."""
        even_ns = self._even_ns(family, places)
        if family.chunks == 1:
            return max(even_ns, self.setting.bound_ns(family, places) or 0)
        filling_ns = (self.setting.families.least_work_ns(family) or 0) * (places - 1) / (family.chunks * places)
        return round(LOOPED * (even_ns + filling_ns / max(self.setting.problem.speeds)))

    def _even_ns(self, family: Family, places: int) -> int:
        """Return what all work takes divided evenly, with all forwards that may run again."""
        families = self.setting.families
        return families.even_ns(family, places, families.again_ns(family)) or 0

    def _places(self, cuts: Cuts) -> Sequence[int]:
        fixed = self.setting.problem.space.stages
        most = min(cuts.num_places, max(1, len(cuts.atoms) // cuts.family.chunks))
        if fixed and fixed > most:
            return ()
        rows = [fixed] if fixed else list(range(most, 1 if cuts.family.chunks > 1 else 0, -1))
        if self.setting.problem.target == "megatron" and cuts.family.chunks > 1:
            rows = [places for places in rows if cuts.num_microbatches % places == 0]
        # halves first: what these reach spares most of the numbers between
        halves = [places for places in rows if places in {most >> i for i in range(most.bit_length())}]
        return halves + [places for places in rows if places not in halves]

    def _could_matter(self, family: Family, least_ns: int, places: int) -> bool:
        """Whether a bound leaves room below what is known of its rung; for mixtures and several stages a place, of any.

        A rung that is far from the best is not searched to the last per cent.
        """
        strategy = strategy_of([family.config] * min(places, 2), is_line=True)
        runs = self.incumbent.runs_config(family.config, pipelined=places > 1)
        known = self.incumbent.best_ns(strategy, runs=runs)
        if not self.incumbent.best_fits:
            return known is None or least_ns < known
        best_ns = self.incumbent.best.step_time_ns
        if "+" in strategy or family.chunks > 1:
            return least_ns < min(best_ns, known or best_ns)
        return known is None or least_ns < (known if least_ns < FAR * best_ns else WORTH * known)

    def _could_fit(self, family: Family, places: int) -> bool:
        """Whether states, and one micro-batch in flight, fit where all is spread evenly over the places.

        One misfit is looked at, so that it can be told.
        """
        if not self._most_bytes or not self._fit:
            return True
        return self._held_bytes(family) <= self._most_bytes * places

    def _held_bytes(self, family: Family) -> int:
        """Return what all places of a family hold together at least, one micro-batch in flight."""
        config, families = family.config, self.setting.families
        kept = families.kept_bytes(family) if config.recompute == config.offload == "none" else 0
        return families.states_bytes(family) + kept

    def in_turn(self) -> Iterator[Family]:
        """Yield all families; where the first does not fit, those that are likely to, the quickest of them first."""
        families = self.setting.families
        first, rest = families.all[:1], families.all[1:]
        yield from first
        if any(self._fit) or not self._fit:
            yield from rest
            return
        left = set(rest)
        for cautious in (True, False):
            for family in self._quickest_first([family for family in rest if family in left], cautious=cautious):
                if cautious and any(self._fit):
                    break
                left.remove(family)
                yield family

    def _quickest_first(self, rest: Sequence[Family], *, cautious: bool) -> Iterator[Family]:
        """Yield families by their turns, which are dear: only those whose turn may be next are asked for theirs."""
        turns = [(self._earliest_turn(family), number, False) for number, family in enumerate(rest)]
        heapify(turns)
        while turns:
            _, number, known = turns[0]
            if known or self.limits.over:
                heappop(turns)
                yield rest[number]
            else:
                heapreplace(turns, (self._turn(rest[number], CAUTIOUS if cautious else BOLD), number, True))

    def _earliest_turn(self, family: Family) -> tuple[float, ...]:
        offloads, talks, _ = self.setting.families.kind(family)
        work_ns = 0 if offloads or talks else self.setting.families.work_ns(family)
        return offloads, 0, talks, self._filled_ns(family, work_ns or 0)

    def _turn(self, family: Family, part: float) -> tuple[float, ...]:
        """Return when a family is looked at: of those that are likely to fit and talk little the quickest first."""
        offloads, talks, _ = self.setting.families.kind(family)
        likely, most = self._is_likely_to_fit(family, part), self.setting.families.most_places(family)
        return offloads, not likely, talks, self._filled_ns(family, self._even_ns(family, most) if likely else 0)

    def _filled_ns(self, family: Family, even_ns: int) -> float:
        """Return about what even stages in a line take, filling and draining them too."""
        rounds = self.setting.families.rounds(family) * family.chunks
        return even_ns * (rounds + self.setting.families.most_places(family) - 1) / rounds

    def _is_likely_to_fit(self, family: Family, part: float) -> bool:
        """Whether that part of the memory holds what first stages keep of 1F1B or interleaved stages, all even."""
        families, places = self.setting.families, self.setting.families.most_places(family)
        if not self._most_bytes:
            return True
        config = family.config
        in_flight: float = min(families.rounds(family), places)
        if family.chunks > 1:
            in_flight += (places - 1) / family.chunks
        if config.recompute == "full":
            in_flight = in_flight * INPUTS + 1 / family.chunks
        in_flight *= config.offload != "activations"
        kept = in_flight * families.kept_estimate(family)
        return families.states_bytes(family) + kept <= part * self._most_bytes * places

    def _could_hold(self, priced: Priced, cuts: Cuts) -> bool:
        """Whether every stage has room for the micro-batches that 1F1B or interleaved stages keep; else for one each.

        Stages whose whole forward runs again keep less, and are simulated.
        """
        if not self._most_bytes or (
            cuts.family.config.recompute == "full" and cuts.evaluator.problem.training.whole_stages
        ):
            return True
        if cuts.family.chunks > 1 and cuts.schedules == AUTO_LOOPED:
            return max(looped_peak_bytes(priced, cuts.num_microbatches, cuts.family.chunks)) <= self._most_bytes
        count = cuts.num_microbatches if cuts.family.chunks == 1 and cuts.schedules[0] in FUSED else 1
        return max(least_peak_bytes(priced, count)) <= self._most_bytes

    def _partitions(self, cuts: Cuts, places: int) -> Iterator[Partition]:
        if cuts.pinned.places:
            yield from self._around_pins(cuts, places)
            return
        num_stages = places * cuts.family.chunks
        if num_stages == 1:
            yield (0,) * len(cuts.atoms)
            return
        layers = self.setting.equal_layers(num_stages)
        if layers:
            yield layers
        for order in self.setting.orders[:NUM_ORDERS]:
            yield from self._balanced(cuts, places, [(atom,) for atom in order])
        yield from self._balanced(cuts, places, self._in_layers(self.setting.orders[0]))

    def _in_layers(self, order: Sequence[int]) -> list[tuple[int, ...]]:
        """Return an order in pieces that are whole layers; nothing where a layer does not follow itself."""
        layer_of = {atom: number for number, row in enumerate(self.setting.layers) for atom in row}
        pieces = [tuple(row) for _, row in groupby(order, key=lambda atom: layer_of.get(atom, -1 - atom))]
        return pieces if len(pieces) == len({layer_of.get(row[0], -1 - row[0]) for row in pieces}) else []

    def _balanced(self, cuts: Cuts, places: int, pieces: Sequence[tuple[int, ...]]) -> Iterator[Partition]:
        """Yield the cuts of an order of pieces whose largest stage takes least, with what closes the step and without.

        Stages that drain early have time for it.
        """
        for amounts in dict.fromkeys((cuts.shares_ns, cuts.works_ns)) if pieces else ():
            works = [sum(amounts[atom] for atom in piece) for piece in pieces]
            stages = balanced(cuts.at_places(works, places * cuts.family.chunks))
            if stages:
                found = {atom: stage for piece, stage in zip(pieces, stages, strict=True) for atom in piece}
                yield tuple(found[atom] for atom in range(len(cuts.atoms)))

    def _around_pins(self, cuts: Cuts, places: int) -> Iterator[Partition]:
        """Cut what pins leave free: pieces of one order, which end where a pinned stage stands between."""
        if self.setting.pinned_partition:
            yield self.setting.pinned_partition
            return
        order, pinned = self.setting.orders[0], cuts.pinned.places
        free = [atom for atom in order if atom not in pinned]
        num_pieces = places - len(pinned)
        stages = balanced([[cuts.shares_ns[atom] for atom in free]] * num_pieces) if num_pieces > 0 else None
        if stages is None:
            return
        piece, groups, latest = dict(zip(free, stages, strict=True)), [0] * len(order), -1
        for place, atom in enumerate(order):
            follows = place and order[place - 1] not in pinned and piece.get(order[place - 1]) == piece.get(atom)
            latest += not follows
            groups[atom] = latest
        found = numbered(cuts.atoms, groups)
        if found and max(found) < cuts.num_places:
            yield found

    def _offered(self, cuts: Cuts, partition: Partition) -> list[Evaluated]:
        """Simulate a cut and tell the incumbent, unless its largest place alone is too slow."""
        if not cuts.pinned.places and self._is_too_large(cuts, partition):
            self._too_slow.append(partition)
            return []
        found = list(self._simulated(cuts, partition))
        self.incumbent.offer(found)
        self._fit += [each.fits and self.incumbent.runs(each) for each in found]
        return found

    def _is_too_large(self, cuts: Cuts, partition: Partition) -> bool:
        """Whether the work of the largest place alone is too much; known before a cut is priced.

        Operators that are divided take no more together than each for itself: what they gather counts once.
        """
        family, num_places = cuts.family, cuts.places_of(partition)

        def too_much(loads: Sequence[int]) -> bool:
            largest = max(sum(loads[place::num_places]) for place in range(num_places)) * cuts.num_microbatches
            return not self._could_matter(family, int(largest / max(cuts.speeds)), num_places)

        if not too_much(by_stage(partition, cuts.paces_ns)):
            return False
        if family.config.tensor * family.config.context * family.config.expert == 1:
            return True
        rows: list[list[int]] = [[] for _ in range(max(partition) + 1)]
        for stage, members in zip(partition, cuts.atoms.members, strict=True):
            rows[stage] += members
        return too_much([self.setting.families.least_work_ns(family, tuple(sorted(row))) or 0 for row in rows])

    def _simulated(self, cuts: Cuts, partition: Partition) -> Iterator[Evaluated]:
        """Yield a cut under the first and the last schedule that run on its places, if it could matter."""
        names = dict.fromkeys((cuts.schedules[0], cuts.schedules[-1])) if max(partition) else cuts.schedules[:1]
        for name in names:
            try:
                candidate = cuts.candidate(partition, name, line=cuts.always_line)
                priced = cuts.evaluator.pricer.price(partition, candidate.places, candidate.line)
            except (UsageError, NoPlanFits) as error:
                self.setting.families.refused = str(error)
                continue
            least_ns = least_step_ns(priced, cuts)
            if not self._could_matter(cuts.family, least_ns, len(set(candidate.places))):
                self._too_slow.append(partition)
                return
            if not self._fit or self._could_hold(priced, cuts):
                yield from cuts.under(partition, (name,))


def about_actions(cuts: Cuts, places: int) -> int:
    """Return about how many actions a plan of stages in a line has: F and B, and messages to and from two neighbours.

    Where replicas do the same, of one of them.
    """
    num_stages = places * cuts.family.chunks
    again = cuts.family.config.recompute == "full"
    closing = 2 * num_stages
    return cuts.num_microbatches * (num_stages * (2 + again) + 4 * (num_stages - 1)) + closing


def least_peak_bytes(priced: Priced, num_microbatches: int) -> list[int]:
    """Return what a rank of each stage holds at least under 1F1B: as many micro-batches as its depth."""
    costs = priced.costs
    depth = [1] * len(costs.stages)
    for edge in reversed(costs.edges):  # edges rise, so that what lies behind a target is known
        depth[edge.source] = max(depth[edge.source], depth[edge.target] + 1)
    return [
        stage.static_bytes + min(num_microbatches, count) * least(stage.activation_bytes)
        for stage, count in zip(costs.stages, depth, strict=True)
    ]


def looped_peak_bytes(priced: Priced, num_microbatches: int, chunks: int) -> list[int]:
    """Return what a rank of each place holds at least when interleaved stages have been warmed up.

    `simulator.schedules.interleaved_1f1b`: so many forwards, p micro-batches of each stage in turn, then one more
    before the first backward. Where micro-batches do not divide by p, each counts as one of the stage that keeps least.
    """
    stages, places = priced.costs.stages, len(priced.costs.stages) // chunks
    found = []
    for place in range(places):
        own = stages[place::places]
        kept = [least(stage.activation_bytes) for stage in own]
        done = min(
            chunks * num_microbatches, 2 * (places - 1 - place) + (chunks - 1) * min(places, num_microbatches) + 1
        )
        rounds, rest = divmod(done, chunks * places)
        counts = [rounds * places + min(places, max(0, rest - chunk * places)) for chunk in range(chunks)]
        if num_microbatches % places:
            counts, kept = [done], [min(kept)]
        held = sum(count * size for count, size in zip(counts, kept, strict=True))
        found.append(sum(stage.static_bytes for stage in own) + held)
    return found


def least_step_ns(priced: Priced, cuts: Cuts) -> int:
    """Return a bound on the step of a priced cut: a rank's work, after the way there and before the way back.

    Forwards lead to the first stage of a rank, whole backwards away from its last; where B may be split, W may be what
    a rank does last.
    """
    costs = priced.costs
    whole = all(name in FUSED for name in cuts.schedules)
    before, after = [0] * len(costs.stages), [0] * len(costs.stages)
    for edge in costs.edges:  # rising: all that leads to a source stands before
        source = costs.stages[edge.source]
        reached = before[edge.source] + least(source.forward_ns) + edge.p2p_ns
        before[edge.target] = max(before[edge.target], reached)
        if edge.gradient and whole:
            back = least(source.backward_input_ns) + least(source.backward_weight_ns)
            after[edge.target] = max(after[edge.target], after[edge.source] + back + edge.p2p_ns)
    of_rank: dict[int, list[int]] = {}
    for stage, ranks in enumerate(costs.ranks):
        of_rank.setdefault(ranks[0], []).append(stage)
    works = [cuts.num_microbatches * action_ns(stage) for stage in costs.stages]
    longest = max(
        min(before[s] for s in row) + sum(works[s] for s in row) + min(after[s] for s in row)
        for row in of_rank.values()
    )
    return int(longest / max(cuts.evaluator.problem.speeds))


def action_ns(stage: StageCost) -> int:
    """Return what one micro-batch takes at least."""
    return sum(least(a) for a in (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns))
