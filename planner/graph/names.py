"""What people call a stage: the module that its operators belong to, or the range of modules where others share it.

Leaves out what a stage does; operators without a module (generated graphs) are called by their own names.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

Path = tuple[str, ...]


def stage_names(paths: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return a name for each stage, no two alike.

    Parameters
    ----------
    paths : sequence of sequence of str
        For each stage the module paths of its operators in order, ``model.layers.3.mlp``; at least one a stage.

    Returns
    -------
    tuple of str
        The longest path that all of a stage's operators share, where no other stage has an operator in it, else the
        first and the last of what it holds there: ``model.layers.0 .. 7``.
    """
    split = [[tuple(path.split(".")) for path in row] for row in paths]
    names = []
    for index, row in enumerate(split):
        shared = _shared(row)
        others = (path for other, each in enumerate(split) if other != index for path in each)
        alone = shared and not any(path[: len(shared)] == shared for path in others)
        names.append(".".join(shared) if alone else _range(row, len(shared)))
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(unique)


def _shared(row: Sequence[Path]) -> Path:
    columns = zip(*row, strict=False)
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))


def _range(row: Sequence[Path], num_shared: int) -> str:
    first, last = (_cut(path, num_shared) for path in (row[0], row[-1]))
    if first == last:
        return ".".join(first)
    return f"{'.'.join(first)} .. {'.'.join(last[num_shared:]) or '.'.join(last)}"


def _cut(path: Path, num_shared: int) -> Path:
    """Return the path down to the first number below what is shared, which tells layers apart, else one step below."""
    numbers = (end for end in range(num_shared, len(path)) if path[end].isdecimal())
    return path[: next(numbers, num_shared) + 1]
