"""The matrix of ``nvidia-smi topo -m``: what lies between the GPUs of one host.

Leaves out NICs' places and rails, and how fast a link is (`costmodel.importers.topology`).
"""

import re
from collections.abc import Iterator

from costmodel.errors import InvalidInput

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""What lies between GPUs that no NVLink joins, nearest first."""
ROW = re.compile(r"(GPU\d+)\s")

Matrix = list[list[str]]


def read_matrix(text: str, path: str) -> Matrix:
    """Return for each GPU what lies between it and each other.

    Raises
    ------
    InvalidInput
        With the line of a row that is not GPU 0, 1, ... in turn, or that has a sign of another kind.
    """
    lines = text.splitlines()
    rows = [(number, line.split()) for number, line in enumerate(lines, 1) if ROW.match(line)]
    header = next((line for line in lines if re.match(r"\s+GPU0\b", line)), "")
    columns = len(re.findall(r"\bGPU\d+\b", header))
    for place, (number, row) in enumerate(rows):
        if row[0] != f"GPU{place}":
            raise InvalidInput(
                f"{path}: line {number}: a row of {row[0]}, and GPU{place} is next; give the matrix of one host, once"
            )
    if columns != len(rows):
        raise InvalidInput(f"{path}: {columns} GPUs in the header, rows for {len(rows)}; was the file cut off?")
    for place, (number, row) in enumerate(rows):
        cells = row[1 : 1 + columns]
        known = ["X" if place == other else rf"NV\d{{1,4}}|{'|'.join(LEVELS)}" for other in range(columns)]
        if len(cells) < columns or not all(map(re.fullmatch, known, cells)):
            raise InvalidInput(
                f"{path}: line {number}: the row of GPU{place} has {' '.join(cells)}; X, NV#, {', '.join(LEVELS)} are "
                "known"
            )
    matrix = [row[1 : 1 + columns] for _, row in rows]
    for i, j in _unlike(matrix):
        raise InvalidInput(
            f"{path}: line {rows[i][0]}: between GPU{i} and GPU{j} lies {matrix[i][j]}, and {matrix[j][i]} in the row "
            f"of GPU{j}; was the file changed?"
        )
    return matrix


def _unlike(matrix: Matrix) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(len(matrix)) for j in range(i) if matrix[i][j] != matrix[j][i])


def group_size(matrix: Matrix, allowed: set[str]) -> int:
    """Return the size of the equal groups of consecutive GPUs that these links join pairwise; 0 if uneven."""

    def joined(i: int, j: int) -> bool:
        return i == j or matrix[i][j].rstrip("0123456789") in allowed

    sets = [{j for j in range(len(matrix)) if joined(i, j)} for i in range(len(matrix))]
    size = len(sets[0])
    expected = [set(range(i // size * size, i // size * size + size)) for i in range(len(matrix))]
    return size if sets == expected else 0


def fewest_nvlinks(matrix: Matrix) -> int:
    """Return how many NVLinks join the pair that has fewest of those that have any."""
    return min(int(cell[2:]) for row in matrix for cell in row if cell.startswith("NV"))
