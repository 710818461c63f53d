"""Generators of random numbers, counters and iterators: whether anybody has drawn from them."""

import itertools
import pickle
import random
import sys
import types
from typing import Any

_ITERATORS: tuple[type, ...] = (itertools.cycle, type(iter(())), type(iter([])), type(iter(range(0))), zip, enumerate)


def random_states() -> dict[str, int]:
    """Return what tells whether anybody has drawn from Python's or numpy's random numbers, by what they are called."""
    found = {"Python's random": hash(random.getstate())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, keys, *rest = numpy.random.get_state()
        found["numpy.random"] = hash((keys.tobytes(), *rest))
    return found


def state_of(value: Any) -> str:
    """Return what a generator of random numbers, a counter or an iterator is at; nothing for what is neither."""
    if isinstance(value, random.Random):
        return str(hash(value.getstate()))
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        plain = {k: v for k, v in frame.f_locals.items() if isinstance(v, bool | int | float | str)} if frame else {}
        return f"generator {frame and frame.f_lasti} {plain}"
    if isinstance(value, _ITERATORS):
        try:
            return str(hash(pickle.dumps(value)))
        except (TypeError, AttributeError, pickle.PicklingError):  # what it goes through has no text
            return "iterator"
    if type(value).__module__.startswith("numpy.random"):
        source = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", value)
        return str(getattr(source, "state", ""))
    return ""
