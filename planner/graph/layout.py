"""Megatron-LM's pipeline layouts: what each stage holds, as one string (``--pipeline-model-parallel-layout``).

E is the embedding, t a layer, m a multi-token-prediction layer and L the head with its loss; ``|`` ends a stage,
``x*n`` and ``(...)*n`` repeat, commas mean nothing. A row is one stage's letters. Grammar and rules are those of
`megatron/core/transformer/pipeline_parallel_layer_layout.py` (Megatron-LM, commit 00caa53). Leaves out encoders, which
that refuses too.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from costmodel.errors import InvalidInput
from costmodel.model.blocks import block_of, list_of

Rows = tuple[str, ...]
"""The letters of each stage; empty for a stage that holds nothing."""
LETTERS = "EtmL"
MOST_LETTERS = 100_000
_REPEATS = (re.compile(r"\(([^()]+)\)\*([0-9]{1,9})", re.ASCII), re.compile(r"([^()*])\*([0-9]{1,9})", re.ASCII))
"""Groups first, then single signs; groups do not nest."""


def parse_layout(text: str) -> Rows:
    """Return what each stage of a layout holds.

    Raises
    ------
    InvalidInput
        For what is no layout; names the sign that is wrong.
    """
    rest = text.replace(",", "")
    for pattern in _REPEATS:
        if sum(len(found[1]) * int(found[2]) for found in pattern.finditer(rest)) > MOST_LETTERS:
            raise InvalidInput(f"{text[:80]!r} makes more signs than any model has layers; at most {MOST_LETTERS}")
        rest = pattern.sub(lambda found: found[1] * int(found[2]), rest)
    wrong = next((sign for sign in rest if sign not in f"{LETTERS}|"), "")
    if wrong or not rest:
        raise InvalidInput(
            f"{text[:80]!r}: {f'the sign {wrong!r}' if wrong else 'nothing'}; a layout is made of E, t, m, L, '|' "
            "between stages, x*n, (...)*n without parentheses inside, and commas, as in 'Et*3|(tt|)*29,m|L'"
        )
    return tuple(rest.split("|"))


def layout_text(rows: Rows) -> str:
    """Return the layout of some stages; runs of equal stages, and of equal letters, are written once with a number."""
    text = ""
    runs = [(letters, len(list(run))) for letters, run in groupby(rows[:-1])]
    for letters, times in runs:
        stage = f"{_in_short(letters)}|"
        text += f"({stage})*{times}" if times > 1 else stage
    return text + _in_short(rows[-1])


def _in_short(letters: str) -> str:
    runs = ((letter, len(list(run))) for letter, run in groupby(letters))
    return "".join(letter * times if times < 3 else f"{letter}*{times}" for letter, times in runs)


def layout_problem(rows: Rows, num_places: int) -> str:
    """Return the rule of Megatron's that a layout breaks, given the number of positions; empty where it keeps all."""
    whole = "".join(rows)
    if len(rows) % num_places:
        return f"{len(rows)} stages on {num_places} places, which do not divide them"
    if whole[:1] != "E" or whole.count("E") != 1:
        return "an embedding that does not come first, and once"
    if whole[-1:] != "L" or whole.count("L") != 1:
        return "a head with its loss that does not come last, and once"
    holders = [stage for stage, letters in enumerate(rows) if "m" in letters]
    if not holders:
        return ""
    if len(holders) > 1:
        return "multi-token-prediction layers in several stages"
    if "t" in whole[whole.index("m") :]:
        return "a layer behind a multi-token-prediction layer"
    if holders[0] < len(rows) - num_places:
        return "multi-token-prediction layers that are not in the last stage of their place"
    return ""


def part_letters(parts: Sequence[str]) -> dict[str, str]:
    """Return the letter of each part of a model, in the order of its operators; nothing where its layers are no list.

    What comes before the first layer is the embedding, what follows it the head with its loss. Layers behind
    that are for multi-token prediction.
    """
    order = list(dict.fromkeys(filter(None, parts)))
    if len({list_of(name) for name in order if block_of(name) == name}) != 1:
        return {}
    found: dict[str, str] = {}
    for name in order:
        if block_of(name) == name:
            found[name] = "m" if "L" in found.values() else "t"
        else:
            found[name] = "L" if "t" in found.values() else "E"
    return found


def layer_letters(parts: Sequence[Sequence[str]]) -> Rows:
    """Return the letters of stages that hold these parts of a model; nothing where its layers are no list.

    With layers for multi-token prediction norms belong to the last layer, as in Megatron.
    """
    letters = part_letters([name for row in parts for name in row])
    if not letters:
        return ()
    last = max(stage for stage, row in enumerate(parts) if any(letters[name] == "t" for name in row))
    with_layer = last if "m" in letters.values() and last < len(parts) - 1 else -1
    rows = []
    for stage, row in enumerate(parts):
        held = Counter(letters[name] for name in row)
        held["L"] = held["L"] > 0 and stage != with_layer
        rows.append("E" * (held["E"] > 0) + "t" * held["t"] + "m" * held["m"] + "L" * held["L"])
    return tuple(rows)
