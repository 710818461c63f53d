"""What a configuration says of a job, fact by fact, and what of it a plan ignores, each with the reason.

Leaves out what facts come to together, which differs by trainer (`planner.export.job_configs.interpreted`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from costmodel.errors import InvalidInput
from planner.export.job_configs.entries import Entry
from planner.export.job_configs.key_table import KeyTable

_TRUE, _FALSE, _NOTHING = ("true", "1", "yes"), ("false", "0", "no"), ("None", "null", "auto", "")
MOST = 2**31
RECIPES = ("recipe", "recipe-name", "recipe_name", "config-file", "config_file", "yaml-cfg")
"""Keys that name a configuration which stands elsewhere."""


@dataclass
class Facts:
    """The facts of a job by name, each with what says it; `ignored` is (key, why).

    `used` was asked for, and `silent` is left to the trainer, or to the script that starts it, by name ("auto").
    """

    values: dict[str, Entry] = field(default_factory=dict)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)

    def said(self, fact: str) -> bool:
        """Whether the configuration says something of a fact."""
        return fact in self.values

    def entry(self, fact: str) -> Entry | None:
        """Return what says a fact, if anything does."""
        self.used.add(fact)
        return self.values.get(fact)

    def value(self, fact: str) -> object:
        """Return what is said of a fact, None for nothing."""
        entry = self.entry(fact)
        return entry.value if entry else None

    def leave_the_rest(self) -> None:
        """Ignore what nothing was asked of."""
        for fact in [fact for fact in self.values if fact not in self.used]:
            self.leave(fact, "nothing in this job depends on it")

    def count(self, fact: str, default: int = 0, least: int = 0) -> int:
        """Return a whole number."""
        entry = self.entry(fact)
        if entry is None:
            return default
        text = str(entry.value).strip()
        digits = text.removeprefix("-")
        if isinstance(entry.value, bool) or not (digits.isascii() and digits.isdecimal() and len(digits) < 11):
            _fail(entry, "a whole number is needed")
        if not least <= int(text) <= MOST:
            _fail(entry, f"a number from {least} is needed")
        return int(text)

    def number(self, fact: str, default: float) -> float:
        """Return a number from 0."""
        entry = self.entry(fact)
        if entry is None:
            return default
        try:
            found = float(str(entry.value))
        except ValueError:
            found = math.nan
        if not 0 <= found < MOST:
            _fail(entry, "a number from 0 is needed")
        return found

    def part(self, fact: str) -> float:
        """Return a part from 0 to 1; the whole where nothing is said."""
        found = self.number(fact, 1.0)
        if found > 1:
            self.fail(fact, "a part from 0 to 1 is needed")
        return found

    def flag(self, fact: str, default: bool = False) -> bool:
        """Return true or false."""
        entry = self.entry(fact)
        if entry is None:
            return default
        text = str(entry.value).strip().lower()
        if text not in (*_TRUE, *_FALSE):
            _fail(entry, "true or false is needed")
        return text in _TRUE

    def text(self, fact: str, default: str = "", known: Iterable[str] = ()) -> str:
        """Return a word, one of `known` where these are given."""
        entry = self.entry(fact)
        if entry is None:
            return default
        names = tuple(known)
        if not isinstance(entry.value, str) or (names and entry.value not in names):
            _fail(entry, f"allowed are {', '.join(names)}" if names else "a word is needed")
        return str(entry.value)

    def fail(self, fact: str, why: str) -> None:
        """Refuse what is said of a fact."""
        _fail(self.values[fact], why)

    def leave(self, fact: str, why: str) -> None:
        """Ignore what is said of a fact, if anything is."""
        entry = self.values.pop(fact, None)
        if entry is not None:
            self.ignored.append((entry.key, why))


def facts_of(entries: Iterable[Entry], table: KeyTable, shared: KeyTable | None = None) -> Facts:
    """Sort entries by a trainer's table, or by one that it shares keys with.

    Raises
    ------
    InvalidInput
        For a key that the trainer does not have, or one that is said twice, and otherwise.
    """
    found = Facts()
    for entry in entries:
        if entry.key.startswith("$"):
            found.ignored.append((entry.key, "the file does not say what it holds; flags that it gives are left out"))
            continue
        key = _key(entry.key, table)
        fact, why = table.carried.get(key, ""), table.why_ignored(key)
        if not fact and not why and shared:
            other = key.rpartition(".")[2].replace("_", "-")
            fact, why = shared.carried.get(other, ""), shared.why_ignored(other)
        if str(entry.value) in _NOTHING and (fact or why):
            found.silent.add(fact)
            found.ignored.append((entry.key, "it says nothing: the trainer's default holds"))
        elif entry.value is None and any(name.startswith(f"{key}.") for name in table.carried):
            found.ignored.append((entry.key, "it says nothing: the trainer's default holds"))
        elif fact:
            _take(found, fact, entry)
        elif why:
            found.ignored.append((entry.key, why))
        elif key in RECIPES:
            raise InvalidInput(
                f"{entry.place}: {entry.key} names a recipe, whose keys are not in this file; give the configuration "
                "that it comes to (Megatron-Bridge writes it by ConfigContainer.to_yaml)"
            )
        else:
            raise InvalidInput(
                f"{entry.place}: {entry.key!r} is no key of {table.trainer}'s that is known here; near are "
                f"{table.near(key)}: correct it, or take it out if it does not change the step"
            )
    return found


def _take(found: Facts, fact: str, entry: Entry) -> None:
    other = found.values.get(fact)
    if other and other.value != entry.value:
        raise InvalidInput(
            f"{entry.place}: {entry.key} is {entry.value!r}, and {other.key} is {other.value!r} ({other.place}); keep "
            "one of the two"
        )
    found.values[fact] = entry


def _key(key: str, table: KeyTable) -> str:
    """Return a key as the table has it: with dashes or underscores, and with its section where it stands alone."""
    for name in (key, key.replace("_", "-"), key.replace("-", "_")):
        if name in table.carried or table.why_ignored(name):
            return name
    alone = key.replace("-", "_")
    return next((name for name in (*table.carried, *table.ignored) if name.endswith(f".{alone}")), key)


def _fail(entry: Entry, why: str) -> None:
    unset = "; the file does not say what stands for it: write its value" if "$" in str(entry.value) else ""
    raise InvalidInput(f"{entry.place}: {entry.key}: found {str(entry.value)[:60]!r}; {why}{unset}")
