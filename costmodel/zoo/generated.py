"""Profiles of large graphs that no laptop could measure: a NASNet-like graph, and random ones of any size.

For planners. Costs are plausible, not measured (`profile_builder`). Needs the standard library alone.
"""

import math
from random import Random

from costmodel import limits
from costmodel.errors import UsageError
from costmodel.model.graph import LOSS
from costmodel.model.profile import Profile
from costmodel.zoo.nasnet import nasnet
from costmodel.zoo.profile_builder import ProfileBuilder


def generate(spec: str) -> Profile:
    """Return the profile that ``nasnet`` or ``random:N:SEED`` names.

    Raises
    ------
    UsageError
        When the spec is neither.
    """
    if spec == "nasnet":
        return nasnet()
    kind, _, rest = spec.partition(":")
    numbers = rest.split(":")
    known = kind == "random" and len(numbers) == 2 and all(n.isdecimal() and len(n) < 20 for n in numbers)
    if not known or int(numbers[0]) < 2:
        raise UsageError(f"{spec!r} names no generated graph; allowed are nasnet and random:N:SEED with N at least 2")
    limits.check("operators", int(numbers[0]), spec)
    return random_graph(int(numbers[0]), int(numbers[1]))


def random_graph(num_operators: int, seed: int) -> Profile:
    """Return a random profile: mostly local edges, some forks and joins, now and then a long skip.

    Parameters
    ----------
    num_operators : int
        At least 2; the loss is one of them.
    seed : int
        Same seed, same profile.
    """
    dice = Random(seed)  # noqa: S311 - no secrets here
    builder = ProfileBuilder(f"random:{num_operators}:{seed}", dice)
    names: list[str] = []
    unread: list[str] = []
    for i in range(num_operators - 1):
        sources = _sources(dice, names, unread) if i else []
        unread = [name for name in unread if name not in sources]
        has_weights = dice.random() < 0.4
        flop = dice.lognormvariate(math.log(2e9), 1.0) if has_weights else 0.0
        size = round(dice.lognormvariate(math.log(2e6), 0.7))
        kind = "linear" if has_weights else "add" if len(sources) > 1 else "gelu"
        names.append(builder.add(kind, sources, flop, size, dice.randrange(10**5, 10**7) if has_weights else 0))
        unread.append(names[-1])
    builder.add(LOSS, unread, 0.0, 0, keeps=False)
    return builder.profile()


def _sources(dice: Random, names: list[str], unread: list[str]) -> list[str]:
    """Draw what an operator reads: an end that nobody reads yet as a rule, else something near."""
    near = names[-6:]
    first = dice.choice(unread[-4:]) if unread and dice.random() < 0.8 else dice.choice(near)
    found = {first: None}
    if len(unread) > 8 or dice.random() < 0.2:  # a join; it keeps the number of branches in bounds
        found[dice.choice(unread)] = None
    if dice.random() < 0.02:
        found[dice.choice(names)] = None
    return list(found)
