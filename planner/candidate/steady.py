"""Steps of many micro-batches, told exactly from a run of few: under 1F1B all goes on alike once it has come to a pace.

A slot of a stage is one forward with the backward that follows it. Each action waits for actions of its own slot, of at
most as many slots before or behind it as micro-batches are in flight, and takes the same time in every slot. So where
all slots of all stages have followed those some slots before by the same time for long enough, all further ones do: a
max-plus system that has come to its periodic regime (Baccelli et al., Synchronization and Linearity, 1992, chapter 3).
With more micro-batches the drain begins as much later, and no rank holds more. Leaves out orders without slots (GPipe,
stages that share a rank) and actions whose times differ.
"""

from dataclasses import dataclass

import numpy as np

from simulator.engine import Times
from simulator.engine.order_arrays import REDUCE, B, F, Ints, R


@dataclass(frozen=True, slots=True)
class Regime:
    """So many slots on everything is so much later."""

    slots: int
    time_ns: int


def pace(times: Times) -> Regime | None:
    """Return the pace at the end of a run; None where it is not settled."""
    arrays = times.structure.arrays
    count, flying = arrays.schedule.num_microbatches, _in_flight(arrays.code, arrays.stage)
    rows: list[Ints] = []
    for stage, late in flying.items():
        for code in (F, B, R):
            ends = times.end[(arrays.stage == stage) & (arrays.code == code)]
            if len(ends) not in (0, count):
                return None
            rows += [ends[: count if code == F else count - late + 1]] if len(ends) else []
    most = max(flying.values())
    for slots in range(1, 2 * most + 1):
        window = 2 * most + 4 + slots
        if min(map(len, rows)) <= window + slots:
            return None
        found = set(np.concatenate([row[-window:] - row[-window - slots : -slots] for row in rows]).tolist())
        if len(found) == 1:
            return Regime(slots, found.pop())
    return None


def _in_flight(codes: Ints, stages: Ints) -> dict[int, int]:
    """Return the most micro-batches of each stage between F and B; each stage has a rank of its own."""
    change = (codes == F).astype(np.int64) - (codes == B)
    return {stage: int(change[stages == stage].cumsum().max()) for stage in np.unique(stages).tolist()}


def num_closing(times: Times) -> int:
    """Return how many actions of a run only close the step."""
    return int((times.structure.arrays.code >= REDUCE).sum())
