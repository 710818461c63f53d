"""Estimates of the step and of the memory of even stages in a line, for many families at once.

A step is micro-batches times the pace of its slowest place, then the filling of the line, its messages, and what
closes it. One stage a place keeps min(m, p) micro-batches in flight (1F1B), v stages a place 2 (p - 1) + (v - 1) p + 1
of its chunks (interleaved 1F1B). Leaves out links that stages share, and what a stage receives in addition to its
messages.
"""

from functools import cached_property

import numpy as np

from costmodel.stages.config import OFFLOAD, RECOMPUTE
from planner.search.space.division_prices import LinePrices
from planner.search.space.even_cuts import EvenCuts
from planner.search.space.even_stages import Floats, Ints
from planner.search.space.family_rows import FamilyRows
from planner.search.space.replica_prices import ReplicaPrices, StageWeights
from planner.search.space.stage_amounts import StageAmounts

SPLIT_FILLING = 3
"""By how much split backwards shorten the filling: (p - 1) (F + I - W) in place of (p - 1) (F + I + W)."""
OFFLOADED = OFFLOAD.index("activations")
FULL = RECOMPUTE.index("full")


class Estimates(StageAmounts):
    """What the families of a table take and hold, about.

    Parameters
    ----------
    rows : Rows
    line : LinePrices
    cuts : EvenCuts
    replicas : ReplicaPrices
    whole_stages : bool
        Whether full recompute runs a stage's whole forward again from its inputs (`TrainingJob`).
    eager : bool
        Whether a schedule may keep enough micro-batches in flight for compute to wait for no message (eager 1F1B).
    coupled : float
        As of `StageAmounts`.
    """

    def __init__(
        self,
        rows: FamilyRows,
        line: LinePrices,
        cuts: EvenCuts,
        replicas: ReplicaPrices,
        *,
        whole_stages: bool,
        eager: bool,
        coupled: float,
    ) -> None:
        super().__init__(rows, line, coupled)
        self._cuts, self._replicas = cuts, replicas
        self._whole_stages, self._eager = whole_stages, eager

    @property
    def step_ns(self) -> Floats:
        """About what a step of each family takes."""
        steady, filling, messages = self._parts
        return steady + filling + messages

    @property
    def split_ns(self) -> Floats:
        """About what it takes where backwards are split: W fills what waits, as in ZB-H1 with F = I = W."""
        steady, filling, messages = self._parts
        return steady + filling / SPLIT_FILLING + messages

    @cached_property
    def _parts(self) -> tuple[Floats, Floats, Floats]:
        """Return what all micro-batches and the end of the step take, the filling of the line, and its messages."""
        rows, chunks = self.rows, self.rows.chunks
        stages = rows.places * chunks
        forward, backward = (part / self._speed for part in self.times(*self._largest))
        weights = self.weights(*self._largest)
        beside = self._replicas.with_microbatches_ns(weights, forward, backward, self.kept(*self._largest), stages)
        closing = self._replicas.closing_ns(weights, backward)
        total = sum(self.times(*self._all))
        p2p, along = self._messages_ns
        slowest = forward + backward
        place = sum(self.times(*self._largest_place)) / self._place_speed + chunks * beside
        looped = (place + chunks * (slowest + beside)) / 2 + 2 * np.maximum(0, p2p - slowest)
        waits = np.maximum(slowest + beside, p2p) if self._eager else slowest + beside + p2p
        pace = np.where(chunks > 1, looped, waits)
        filling = (rows.places - 1) / stages * (total + stages * beside)
        return rows.count * pace + chunks * closing, filling, 2 * along

    @cached_property
    def memory_bytes(self) -> Floats:
        """About what the fullest rank holds: of the first two places, the last, and the one with most parameters.

        The first stage is what the others leave, so that the second place may hold more than the first.
        """
        rows = self.rows
        last = rows.places - 1
        heaviest = self._cuts.heaviest[self._cuts.of] % rows.places
        places = (np.zeros_like(last), np.minimum(1, last), heaviest, last)
        found: Floats = np.maximum.reduce([self._held(place) for place in places])
        return found + self._replicas.workspace_bytes

    @cached_property
    def _all(self) -> tuple[Ints, Ints]:
        begins = np.zeros_like(self.rows.places)
        return begins, begins + self.line.forward.shape[1] - 1

    def _ends(self, cut: Ints, stage: Ints) -> tuple[Ints, Ints]:
        return self._cuts.begins[cut, stage], self._cuts.begins[cut, stage + 1]

    @cached_property
    def _largest(self) -> tuple[Ints, Ints]:
        return self._ends(self._cuts.of, self._cuts.largest[self._cuts.of])

    @cached_property
    def _largest_place(self) -> tuple[Ints, Ints]:
        return self._ends(self._cuts.of_places, self._cuts.largest[self._cuts.of_places])

    @property
    def _speed(self) -> Floats:
        return self._cuts.speed[self._cuts.of]

    @property
    def _place_speed(self) -> Floats:
        return self._cuts.speed[self._cuts.of_places]

    @cached_property
    def _message_bytes(self) -> Floats:
        """The longest message of a cut, one way."""
        begins = self._cuts.begins[:, 1:]
        inner = begins < len(self.line.crossing) - 1
        longest: Floats = np.where(inner, self.line.crossing[begins], 0.0).max(axis=1, initial=0.0)
        found: Floats = longest[self._cuts.of] * self.line.message[self.rows.division]
        return found

    @cached_property
    def _messages_ns(self) -> tuple[Floats, Floats]:
        return self._replicas.messages_ns(self._message_bytes)

    def _held(self, place: Ints) -> Floats:
        """Return what a rank of one place of each family holds."""
        rows, line = self.rows, self.line
        chunks, places, count = rows.chunks, rows.places, rows.count
        looped = np.minimum(chunks * count, 2 * (places - 1 - place) + (chunks - 1) * places + 1)
        done = np.where(chunks > 1, looped, np.minimum(count, places - place))
        rounds, rest = np.divmod(done, chunks * places)
        held = np.zeros(len(place))
        none = np.zeros(len(place))
        weights = StageWeights(none, none, none, none, line.unit[rows.division])
        for chunk in range(int(chunks.max())):
            here = chunk < chunks
            stage = np.where(here, chunk * places + place, 0)
            ends = self._ends(self._cuts.of, stage)
            number = np.where(chunks > 1, rounds * places + np.clip(rest - chunk * places, 0, places), done)
            held += here * self._activations(ends, number)
            weights = weights.plus(self.weights(*ends), here)
        offloaded = rows.offload == OFFLOADED
        window = 2 * held / np.maximum(1, done)
        last = (place == places - 1) * line.workspace[rows.division]
        messages = 2 * self._message_bytes * (places > 1) * chunks
        peak = line.peak[rows.recompute, rows.division] * (not self._whole_stages)
        static = self._replicas.states_bytes(weights) + self._replicas.buffers_bytes(weights, chunks)
        kept = np.where(offloaded, np.minimum(window, held), held)
        found: Floats = static + kept + peak * chunks + last + messages
        return found

    def _activations(self, ends: tuple[Ints, Ints], number: Ints) -> Floats:
        """Return the bytes that a stage keeps of micro-batches in flight; with full recompute one, and all inputs."""
        kept = self.kept(*ends)
        if not self._whole_stages:
            return number * kept
        inputs = self.line.crossing[ends[0]] * self.line.message[self.rows.division]
        return np.where(self.rows.recompute == FULL, kept + number * inputs, number * kept)
