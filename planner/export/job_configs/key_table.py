"""A trainer's keys: which fact of a job each carries, or why a plan ignores it.

Reading and writing go by the same table. A key may end in ``*``, which stands for any rest. Leaves out values
(`planner.export.job_configs.facts`).
"""

import csv
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

TRAINERS = ("deepspeed", "torchtitan", "megatron", "megatron-bridge")
"""Trainers whose configurations are read."""
WHY = {
    "model": "the profile says what the model is",
    "data": "it says what is learned from, not how long a step takes",
    "learning": "it changes what is learned, not how long a step takes",
    "logging": "what is logged and checked is outside of the step that is priced",
    "checkpoint": "saving and loading are outside of the step",
    "launch": "it says how processes are started, not what they do in a step",
    "kernel": "which kernels run is in the profile's times and the trainer's habits",
    "transfer": "how transfers are carried out is in the prices of collectives",
    "unpriced": "it changes the step or its memory, and is not priced: the plan is as if it were not set",
    "another": "it is of another kind of job than training",
}


@dataclass(frozen=True)
class KeyTable:
    """The keys of a trainer.

    Attributes
    ----------
    carried : mapping of str to str
        The fact that a key carries; of several keys of a fact the first is the one that is written.
    ignored : mapping of str to str
        Why a key (or a pattern of keys) is ignored, one of `WHY`.
    """

    trainer: str
    carried: Mapping[str, str]
    ignored: Mapping[str, str]

    def why_ignored(self, key: str) -> str:
        """Return why a key is ignored; nothing where it is unknown."""
        kind = self.ignored.get(key) or next(
            (kind for pattern, kind in self.ignored.items() if fnmatchcase(key, pattern)), ""
        )
        return WHY.get(kind, "")

    def key_of(self, fact: str) -> str:
        """Return the key that is written for a fact."""
        return next(key for key, carried in self.carried.items() if carried == fact)

    def near(self, key: str) -> str:
        """Return the known keys that are nearest to an unknown one, for people."""
        return ", ".join(difflib.get_close_matches(key, [*self.carried, *self.ignored], 3, 0.5)) or "none"


@cache
def key_table(trainer: str) -> KeyTable:
    """Return the table of a trainer."""
    with Path(__file__).with_name(f"{trainer}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    carried = {row["key"]: row["carries"] for row in rows if row["carries"]}
    return KeyTable(trainer, carried, {row["key"]: row["ignored"] for row in rows if row["ignored"]})
