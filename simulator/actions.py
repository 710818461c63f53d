"""What a rank does, one action at a time, and the text form of it.

The letters are torch's: F forward, B full backward, I input gradient, W weight gradient. The text of
an action is ``<stage><kind><microbatch>`` with a sequence slice after a dot (``2F5``, ``2F5.1``); a
transfer names the other stage (``2SEND_F5>4``, ``4RECV_F5<2``); stage-wide actions have no micro-batch
(``2REDUCE``, ``2OPT``). An overlapped pair of two is ``(2F5;3B1)OVERLAP_F_B``. Leaves out durations: those are costs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from costmodel.errors import InvalidInput


class Kind(StrEnum):
    """Kinds of actions."""

    __hash__ = str.__hash__  # that of enumerations is not compiled, and orders ask for it with every action

    F = "F"
    B = "B"
    I = "I"  # noqa: E741 - torch's letter
    W = "W"
    R = "R"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    REDUCE = "REDUCE"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    OFFLOAD = "OFFLOAD"
    RELOAD = "RELOAD"
    OPT = "OPT"


COMPUTE = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R})
"""Kinds that occupy a rank's compute stream for one micro-batch."""

SENDS = frozenset({Kind.SEND_F, Kind.SEND_B})
RECEIVES = frozenset({Kind.RECV_F, Kind.RECV_B})
STAGE_WIDE = frozenset({Kind.REDUCE, Kind.UNSHARD, Kind.RESHARD, Kind.OFFLOAD, Kind.RELOAD, Kind.OPT})
"""Kinds that may come without a micro-batch."""

_MOST_KEPT = 512
"""Micro-batches of a kind and stage whose actions are kept (`numbered`)."""

_TEXT = re.compile(r"(\d{1,9})([A-Z]+(?:_[FB])?)(?:(\d{1,9})(?:\.(\d{1,9}))?)?(?:([<>])(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one rank.

    Attributes
    ----------
    kind : Kind
    stage : int
        The stage that acts: for a receive the one that receives.
    microbatch : int
        Index of the (first) micro-batch; -1 for stage-wide actions.
    slice_index : int
        Sequence slice; -1 for the whole sequence.
    peer : int
        The stage at the other end of a transfer; -1 otherwise.
    """

    kind: Kind
    stage: int
    microbatch: int = -1
    slice_index: int = -1
    peer: int = -1

    def __str__(self) -> str:
        text = f"{self.stage}{self.kind}"
        if self.microbatch >= 0:
            text += str(self.microbatch)
        if self.slice_index >= 0:
            text += f".{self.slice_index}"
        if self.kind in SENDS:
            text += f">{self.peer}"
        if self.kind in RECEIVES:
            text += f"<{self.peer}"
        return text


def numbered(kind: Kind, stage: int, microbatches: Sequence[int]) -> list[Action]:
    """Return the actions of one kind and stage on some micro-batches, rising; searches ask for the same ones often."""
    if microbatches and microbatches[-1] >= _MOST_KEPT:
        return [Action(kind, stage, k) for k in microbatches]
    known = _known(kind, stage)
    known += [Action(kind, stage, k) for k in range(len(known), microbatches[-1] + 1)] if microbatches else ()
    return list(map(known.__getitem__, microbatches))


@lru_cache(maxsize=1024)
def _known(kind: Kind, stage: int) -> list[Action]:
    """Return the first actions of one kind and stage; the list grows."""
    return []


def receive_of(send: Action) -> Action:
    """Return the receive that takes what a SEND sends."""
    kind = Kind.RECV_F if send.kind is Kind.SEND_F else Kind.RECV_B
    return Action(kind, send.peer, send.microbatch, send.slice_index, send.stage)


def action_pattern() -> str:
    """Return the regular expression of actions as text, as a schema has it."""
    number = "[0-9]{1,9}"
    microbatch = rf"{number}(\.{number})?"
    plain = set(Kind) - SENDS - RECEIVES - STAGE_WIDE
    forms = (plain, ""), (SENDS, f">{number}"), (RECEIVES, f"<{number}")
    found = [f"({'|'.join(sorted(kinds))}){microbatch}{behind}" for kinds, behind in forms]
    return f"^{number}({'|'.join(found)}|({'|'.join(sorted(STAGE_WIDE))})({microbatch})?)$"


def parse_action(text: str) -> Action:
    """Read an action back from its text.

    Raises
    ------
    InvalidInput
        When the text is no action, or lacks what its kind needs.
    """
    match = _TEXT.fullmatch(text)
    if not match or match[2] not in Kind.__members__:
        raise InvalidInput(f"{text!r} is no action; write <stage><kind><microbatch>, as in 2F5, 2SEND_F5>4 or 2OPT")
    kind = Kind(match[2])
    if match[3] is None and kind not in STAGE_WIDE:
        raise InvalidInput(f"{text!r} lacks a micro-batch; write for example {match[1]}{kind}0")
    sign = ">" if kind in SENDS else "<" if kind in RECEIVES else None
    if match[5] != sign:
        allowed = f"{kind} names the other stage after {sign!r}" if sign else f"{kind} names no other stage"
        raise InvalidInput(f"{text!r}: {allowed}")
    number = [-1 if part is None else int(part) for part in (match[3], match[4], match[6])]
    return Action(kind, int(match[1]), *number)


def pair_text(forward: Action, backward: Action) -> str:
    """Return the text of an overlapped pair, as torch writes it: ``(2F5;3B1)OVERLAP_F_B``."""
    return f"({forward};{backward})OVERLAP_F_B"
