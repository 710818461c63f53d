"""What the ranks of a pipeline must hold alike, and how they refuse together what one of them refuses.

Ranks meet for the first time when each has captured its model and matched it with the plan. There each says a digest
of its plan, of its captured program and of its options, or the error that it has met by then; so all go on, or all end
with the same words and exit code. Leaves out batches (`same_batches`), and initial values, which copies are given.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from costmodel.capture.capture import Capture
from costmodel.capture.digests import digest_of, model_digests, program_digests
from costmodel.errors import PeerLost, PenstockError
from executor.communication.groups import ProcessGroups, RefusedAlike
from executor.plan_match.matching import place_in
from planner.plan import Plan
from planner.plan.file import plan_to_json

PLAN, PROGRAM = "plan", "program"
FAILURE = "failure"


class FailedElsewhere(PenstockError):
    """Another rank has failed in a way that is nobody's mistake but a bug's."""

    exit_code = 1


@dataclass(frozen=True)
class Agreed:
    """What a rank holds.

    Attributes
    ----------
    digests : mapping of str to str
        By what people call it: digests, and options as they are written.
    operators : mapping of str to str
        Digests of the program's operators, which say where programs part.
    """

    digests: Mapping[str, str]
    operators: Mapping[str, str] = field(default_factory=dict)


def held(plan: Plan, captured: Capture, options: Mapping[str, Any]) -> Agreed:
    """Return what this rank holds; asked before the model is emptied of what other ranks run."""
    operators = program_digests(captured)
    told = {PLAN: digest_of(json.dumps(plan_to_json(plan), sort_keys=True, default=str))}
    told |= {PROGRAM: digest_of([*operators.items()]), **model_digests(captured)}
    return Agreed({**told, **{f"option {name}": str(value) for name, value in options.items()}}, operators)


def agree(groups: ProcessGroups, own: Agreed) -> None:
    """Refuse on all ranks what is not alike, or what one of them has refused by now; collective.

    Raises
    ------
    PenstockError
        Of the lowest rank that has failed, of its class; else `RefusedAlike`, which names ranks and what differs.
    """
    rows = _told(groups, own.digests)
    for rank, row in enumerate(rows):
        if FAILURE in row:
            raise _error(rank, row)
    words = difference(rows)
    alike = "the same plan file, code and options"
    if words and len({row.get(PROGRAM) for row in rows}) > 1:
        words += _first_operator(_told(groups, own.operators))
        alike += ", and, where code goes through a Python set of names, the same PYTHONHASHSEED"
    if words:
        raise RefusedAlike(f"{words}: start all ranks with {alike}")


def _told(groups: ProcessGroups, own: Mapping[str, str]) -> list[dict[str, str]]:
    return [json.loads(row) for row in groups.all_gather_bytes(json.dumps(dict(own)).encode())]


def difference(rows: Sequence[Mapping[str, str]]) -> str:
    """Return which ranks differ from the others, and in what; nothing where all are alike."""
    found: dict[tuple[int, ...], list[str]] = {}
    like = 0
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name, "nothing") for row in rows]
        common = Counter(values).most_common(1)[0][0]  # the lowest rank's among equals
        if others := tuple(rank for rank, value in enumerate(values) if value != common):
            like = values.index(common)
            shown = f" ({values[others[0]]}, not {common})" if name.startswith("option ") else ""
            found.setdefault(others, []).append(f"{name if shown else f'the {name}'}{shown}")
    return "; ".join(
        f"{ranks_in_words(others)} {'differs' if len(others) == 1 else 'differ'} from rank {like} in {', '.join(what)}"
        for others, what in found.items()
    )


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ranks as people name them."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _first_operator(rows: Sequence[Mapping[str, str]]) -> str:
    """Return where programs part, for people."""
    for name in rows[0]:
        if any(row.get(name) != rows[0][name] for row in rows):
            return f" (first at {name!r})"
    return ""


def _error(rank: int, row: Mapping[str, Any]) -> PenstockError:
    """Return a rank's error as every rank raises it."""
    code, words = int(row["exit"]), str(row[FAILURE])
    kinds = {kind.exit_code: kind for kind in PenstockError.__subclasses__()}
    error = kinds.get(code, FailedElsewhere)(f"{words} (so says rank {rank}, and all ranks end)")
    error.alike = True
    return error


@contextmanager
def telling_others(timeout_s: float, group: Any = None) -> Iterator[None]:
    """Tell the other ranks an error of the block where they wait for this one; all raise that of the lowest rank."""
    try:
        yield
    except Exception as error:
        rank, size = place_in(group)
        if size > 1 and rank >= 0 and not getattr(error, "alike", False):
            _tell(error, rank, size, timeout_s, group)
        raise


def _tell(error: Exception, rank: int, size: int, timeout_s: float, group: Any) -> None:
    try:
        groups = ProcessGroups(rank, size, timeout_s, group)
    except (PeerLost, ValueError):  # nobody is there to hear of it, or nothing says where
        return
    code = getattr(error, "exit_code", 1)
    words = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}".strip()
    try:
        agree(groups, Agreed({FAILURE: words, "exit": str(code)}))
    except PenstockError as agreed:
        if agreed.alike:
            leave(groups)
        if not str(agreed).startswith(words):
            raise agreed from None
    error.alike = True  # type: ignore[attr-defined]


def leave(groups: ProcessGroups) -> None:
    """Leave a pipeline whose ranks have refused something together; collective."""
    groups.all_gather_bytes(b"")
    groups.end()
    groups.watch.close()


def agree_on_stepped(groups: ProcessGroups, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse optimizers of one class that ranks have made by themselves, and not alike; collective.

    A rank that has none, or several for parameters of several kinds, says nothing.

    Raises
    ------
    RefusedAlike
    """
    kind = "option optimizer"
    rows = _told(groups, held_of(optimizers[0] if len(optimizers) == 1 else None).digests)
    for like in {row[kind]: row for row in rows if row}.values():
        words = difference([row if row.get(kind) == like[kind] else like for row in rows])
        if words:
            raise RefusedAlike(f"{words}: make the optimizer alike on all ranks (those of the step before were not)")


def held_of(optimizer: torch.optim.Optimizer | None) -> Agreed:
    """Return what ranks must have alike of their optimizers: class and what it takes where a group says nothing."""
    if optimizer is None:
        return Agreed({})
    plain = {
        name: value
        for name, value in optimizer.defaults.items()
        if value is None or isinstance(value, bool | int | float | str | tuple)
    }
    numbers = {n: float(v) for n, v in optimizer.defaults.items() if torch.is_tensor(v) and v.numel() == 1}
    told = {f"option {name} of the optimizer": str(value) for name, value in {**plain, **numbers}.items()}
    return Agreed({"option optimizer": type(optimizer).__qualname__, **told})
