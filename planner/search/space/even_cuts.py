"""Even cuts of the line of atoms, for every way to spread work along it and every number of stages.

Each is made twice: between any atoms, and where little crosses the line, as between layers. Where messages take long
the second one is the faster, though its largest stage is larger. Leaves out which of both a family has.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.search.space.even_stages import Floats, Ints, even_stages

FEW_PERCENT, ALIKE = 10, 1.05
"""Little crosses a position where no more crosses than at a tenth of all, or hardly more."""


@dataclass(frozen=True)
class EvenCuts:
    """Even cuts, by row of the families.

    Attributes
    ----------
    begins : array
        First item of each stage, one row a cut.
    of, of_places : array of int
        The cut of each family, and the one into as many stages as it has places.
    largest, heaviest : array of int
        The stage of each cut that takes longest, and the one that holds most parameters.
    speed : array
        Speed of the place of the largest.
    is_whole : array of bool
        Whether no stage of a cut is empty.
    """

    begins: Ints
    of: Ints
    of_places: Ints
    largest: Ints
    heaviest: Ints
    speed: Floats
    is_whole: NDArray[np.bool_]

    @property
    def low_traffic(self) -> "EvenCuts":
        """The same families cut where little crosses the line."""
        half = len(self.begins) // 2
        return replace(self, of=self.of + half, of_places=self.of_places + half)

    def where(self, mask: NDArray[np.bool_], other: "EvenCuts") -> "EvenCuts":
        """Return these families with the cuts of another where the mask says so."""
        of_places = np.where(mask, other.of_places, self.of_places)
        return replace(self, of=np.where(mask, other.of, self.of), of_places=of_places)


def even_cuts(
    work: Floats, held: Floats, crossing: Floats, numbers: Ints, speeds: Floats, of: tuple[Ints, Ints]
) -> EvenCuts:
    """Cut lines evenly: between any items in the first half of what is returned, in the second where little crosses.

    Parameters
    ----------
    work, held : array, lines x items
        What each item takes, and what parameters it holds.
    crossing : array, items + 1
        Bytes that cross each position.
    numbers : array of int, lines
        Stages of each line.
    speeds : array, lines x most stages
    of : pair of array of int
        `of` and `of_places` of `EvenCuts`.
    """
    limit = ALIKE * np.percentile(crossing[1:-1], FEW_PERCENT) if len(crossing) > 2 else np.inf
    light = np.flatnonzero((crossing <= limit) | (np.arange(len(crossing)) % (len(crossing) - 1) == 0))
    pieces = np.add.reduceat(work, light[:-1], axis=1)
    begins = np.concatenate([even_stages(work, numbers, speeds), light[even_stages(pieces, numbers, speeds)]])
    twice = np.concatenate([speeds, speeds])
    largest = np.argmax(_by_stage(np.concatenate([work, work]), begins) / twice, axis=1)
    heaviest = np.argmax(_by_stage(np.concatenate([held, held]), begins), axis=1)
    used = np.arange(begins.shape[1] - 1) < np.concatenate([numbers, numbers])[:, None]
    empty = (np.diff(begins, axis=1) <= 0) & used
    speed: Floats = twice[np.arange(len(twice)), largest]
    return EvenCuts(begins, of[0], of[1], largest, heaviest, speed, np.logical_not(empty.any(axis=1)))


def _by_stage(items: Floats, begins: Ints) -> Floats:
    """Return the sum of items of each stage of each line."""
    prefix = np.zeros((len(items), items.shape[1] + 1))
    np.cumsum(items, axis=1, out=prefix[:, 1:])
    return np.diff(np.take_along_axis(prefix, begins, axis=1), axis=1)
