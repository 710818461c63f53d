"""How long samples are: a histogram of their tokens, as a CSV of ``tokens,count``, and batches drawn from it.

Leaves out what samples of a length cost (`planner.candidate.length_costs`), and lengths that go together in a batch.
"""

import csv
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from costmodel.errors import InvalidInput
from costmodel.files import read_text

HEADER = ["tokens", "count"]
MOST_TOKENS, MOST_COUNT = 2**31, 2**53
"""Of one sample, and of samples of one length: beyond these the sums of times leave 64 bits."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of samples with how many samples have as many, rising.

    Raises
    ------
    InvalidInput
        Without a sample, and on a number of tokens that is given twice.
    """

    rows: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(sorted(self.rows)))
        tokens = [each for each, _ in self.rows]
        twice = next((each for each, after in pairwise(tokens) if each == after), None)
        if twice is not None:
            raise InvalidInput(f"{twice} tokens are given twice; add up their counts")
        if not sum(count for _, count in self.rows):
            raise InvalidInput("no samples; at least one row with a count above 0 is needed")

    @property
    def mean(self) -> float:
        """Tokens of a sample in the mean."""
        return sum(tokens * count for tokens, count in self.rows) / sum(count for _, count in self.rows)

    def batches(self, number: int, size: int, seed: int) -> list[list[int]]:
        """Return drawn batches, the tokens of `size` samples each; the same seed gives the same ones."""
        tokens, counts = zip(*self.rows, strict=True)
        generator = Random(seed)  # noqa: S311 - no secret
        return [generator.choices(tokens, counts, k=size) for _ in range(number)]


def read_lengths(path: str | Path) -> Lengths:
    """Read a histogram.

    Raises
    ------
    InvalidInput
        Names the line, what was found and what is allowed.
    """
    lines = list(csv.reader(read_text(Path(path)).splitlines()))
    if not lines or lines[0] != HEADER:
        found = ",".join(lines[0]) if lines else ""
        raise InvalidInput(f"{path}: line 1: found {found!r}; the header {','.join(HEADER)!r} is needed")
    rows = [_row(path, number, cells) for number, cells in enumerate(lines[1:], 2) if cells]
    try:
        return Lengths(tuple(rows))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _row(path: str | Path, number: int, cells: list[str]) -> tuple[int, int]:
    if len(cells) == len(HEADER) and all(cell.isascii() and cell.isdigit() and len(cell) < 20 for cell in cells):
        tokens, count = map(int, cells)
        if 1 <= tokens <= MOST_TOKENS and count <= MOST_COUNT:
            return tokens, count
    raise InvalidInput(
        f"{path}: line {number}: found {','.join(cells)!r}; tokens from 1 to {MOST_TOKENS} and a count from 0 to "
        f"{MOST_COUNT} are needed, as in 512,1000"
    )
