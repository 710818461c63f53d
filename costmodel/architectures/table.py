"""Models by name: `models.csv`, the shapes of well-known models with their sources.

A row holds what its configuration would: ``key=value``, with the tower in front where there are several. `not_counted`
lists beginnings of parameter names (or rows of one, ``name[start:]``) that the row's count leaves out.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from costmodel.architectures.configs import Config, make_config
from costmodel.errors import UsageError


@dataclass(frozen=True, slots=True)
class Row:
    """One model of the table.

    Attributes
    ----------
    id, model_type, shape : str
    parameters, active_parameters : int
        As the source counts them; 0 where no count was verified.
    not_counted : tuple of str
    source, note : str
    """

    id: str
    model_type: str
    shape: str
    parameters: int
    active_parameters: int
    not_counted: tuple[str, ...]
    source: str
    note: str

    def config(self) -> Config:
        """Return the row as a configuration."""
        levels: dict[str, dict[str, int]] = {}
        for item in self.shape.split():
            key, _, value = item.partition("=")
            level, _, name = key.rpartition(".")
            levels.setdefault(level, {})[name] = int(value)
        own = levels.pop("", {})
        return make_config(self.model_type, own, **levels)


@cache
def rows() -> tuple[Row, ...]:
    """Return the table in the order of its file."""
    text = (files("costmodel.architectures") / "models.csv").read_text(encoding="utf-8")
    return tuple(
        Row(
            row["id"],
            row["model_type"],
            row["shape"],
            int(row["parameters"] or 0),
            int(row["active_parameters"] or 0),
            tuple(row["not_counted"].split()),
            row["source"],
            row["note"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def find(name: str) -> Row:
    """Return the row of this id.

    Raises
    ------
    UsageError
        When there is none; names those there are.
    """
    for row in rows():
        if row.id == name:
            return row
    raise UsageError(f"{name!r} is no model of the table; it has {', '.join(row.id for row in rows())}")
