"""What each rank holds by strategy, whether that fits, how far micro-batch and sequence may grow, and what would help.

Every figure is of a plan with all choices fixed (`held_memory`). Memory is affine in the micro-batch and nearly so in
the sequence: sizes are solved for and then evaluated. Leaves out times, but to tell which change is the cheapest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import floor
from typing import TYPE_CHECKING

from costmodel.errors import PenstockError
from planner.answer.held_memory import FixedPlans, HeldMemory
from planner.answer.memory_spaces import changes, flags_of, strategies
from planner.plan.fitting import FITS
from planner.question.space import Space

if TYPE_CHECKING:
    from pandas import DataFrame

LARGEST = 4096
"""Samples of a micro-batch up to which a largest one is sought."""
LONGEST = 1 << 20
"""Tokens of a sample up to which a longest sequence is sought."""
MOST_TRIED = 5
"""Sizes that are evaluated in search of the largest one that fits."""
STEP_TOKENS = 256
"""Sequences are multiples of it."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One strategy, as the JSON of ``penstock memory`` has it; 0 where no size fits, None where none was asked."""

    strategy: str
    microbatch_size: int
    held: HeldMemory
    largest_microbatch_size: int
    longest_sequence: int | None
    change: str | None

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        held = self.held
        return {
            "strategy": self.strategy,
            "microbatch_size": self.microbatch_size,
            "point_bytes": held.point_bytes,
            "upper_bytes": held.upper_bytes,
            "terms": held.terms,
            "fits": held.fits,
            "largest_microbatch_size": self.largest_microbatch_size,
            "longest_sequence": self.longest_sequence,
            "change": self.change,
        }


@dataclass(frozen=True)
class MemoryTable:
    """Rows of one model on one number of devices.

    Parameters
    ----------
    plans : FixedPlans
    sequence : int
        Tokens of a sample; 0 where the model has no other than its own.
    microbatch_size : int
    """

    plans: FixedPlans
    sequence: int = 0
    microbatch_size: int = 1

    def rows(self) -> list[MemoryRow]:
        """Return the rows of the strategies that the model and the devices admit."""
        found = []
        for strategy, space in self.strategies():
            held = self.plans.held(space, self.microbatch_size)
            if isinstance(held, HeldMemory):
                sequence = self._longest_sequence(space, held) if self.sequence else None
                size = self._largest_size(space, held)
                change = None if held.fits == FITS else self._cheapest_change(space)
                found.append(MemoryRow(strategy, self.microbatch_size, held, size, sequence, change))
        return found

    def table(self) -> "DataFrame":
        """Return a row for each strategy, sizes in bytes."""
        from pandas import DataFrame

        return DataFrame([row.to_json() for row in self.rows()]).set_index("strategy")

    def refusals(self) -> list[str]:
        """Return why strategies have no row, each with its reason."""
        found = ((name, self.plans.held(space, self.microbatch_size)) for name, space in self.strategies())
        return [f"{name}: {why}" for name, why in found if isinstance(why, PenstockError)]

    def strategies(self) -> Iterator[tuple[str, Space]]:
        """Yield strategies with what they fix, the simplest first."""
        return strategies(self.plans.num_devices, self.plans.num_blocks, self.plans.num_experts)

    def _largest_size(self, space: Space, held: HeldMemory) -> int:
        """Return the largest micro-batch that fits; of a given batch one that divides a replica's part of it."""
        size, of_replica = self.microbatch_size, self.plans.batch // (space.data or 1)
        if held.fits != FITS and size == 1:
            return 0

        def allowed(most: int) -> int:
            if not self.plans.batch:
                return min(most, LARGEST)
            return next((n for n in range(min(most, of_replica), 0, -1) if of_replica % n == 0), 0)

        return self._largest(lambda tried: self.plans.held(space, tried), (size, held), 2 * size, allowed)

    def _longest_sequence(self, space: Space, held: HeldMemory) -> int:
        """Return the longest sequence that fits, at most `LONGEST`."""
        return self._largest(
            lambda tried: self.plans.held(space, self.microbatch_size, tried),
            (self.sequence, held),
            self.sequence // 2,
            lambda most: min(most, LONGEST) // STEP_TOKENS * STEP_TOKENS,
        )

    def _largest(
        self,
        held_at: Callable[[int], HeldMemory | PenstockError],
        start: tuple[int, HeldMemory],
        other: int,
        allowed: Callable[[int], int],
    ) -> int:
        """Return the largest allowed size that fits, 0 where none does: by the secant through sizes that were tried."""
        size, held = start
        best, tried = (size if held.fits == FITS else 0), other
        for _ in range(MOST_TRIED):
            found = held_at(tried)
            if not isinstance(found, HeldMemory):
                break
            best = max(best, tried) if found.fits == FITS else best
            each = max(1, (found.upper_bytes - held.upper_bytes) / (tried - size))
            most = allowed(max(0, size + floor(self._room_bytes(held) / each)))
            if most >= tried and found.fits != FITS:
                most = allowed(tried - 1)
            if most <= best or most in (tried, size):
                break
            tried = most
        return best

    def _room_bytes(self, held: HeldMemory) -> int:
        margin = self.plans.options.get("memory_margin_bytes", 0)
        return self.plans.device_bytes - held.upper_bytes - (margin if isinstance(margin, int) else 0)

    def _cheapest_change(self, space: Space) -> str:
        """Return the flags of the fastest plan that fits with one change, or full recompute and one; empty: none does.

        The fastest is that which takes least a sample.
        """
        size, again = self.microbatch_size, replace(space, recompute="full")
        for tried in (
            list(changes(space, size, self.plans.num_blocks)),
            list(changes(again, size, self.plans.num_blocks)),
        ):
            found = [
                (held.step_time_ns / self.plans.batch_of(new), flags_of(space, size, changed, new))
                for changed, new in tried
                if isinstance(held := self.plans.held(changed, new), HeldMemory) and held.fits == FITS
            ]
            if found:
                return min(found)[1]
        return ""
