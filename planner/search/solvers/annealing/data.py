"""What a cut is valued by, as arrays, and what its stages take.

Few arrays with named columns (`planner.search.solvers.annealing.kernels`): each array of its own costs every function
that it is given to a part of a second to compile. Leaves out how a cut is valued.
"""

from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Dice = NDArray[np.uint64]
"""The state of the random numbers."""

RULES = ("graph-1f1b", "graph-eager-1f1b", "1f1b", "eager-1f1b", "gpipe")
"""Schedules whose micro-batches in flight are known: `Cut.warmups` are places in this list."""

LOOPED = "interleaved-1f1b"
"""The schedule of several stages a place by which cuts are valued, split backwards too."""


class Cut(NamedTuple):
    """What a cut is valued by.

    Attributes
    ----------
    works : array of shape (atoms, 5)
    flows : array of shape (flows + 1, 3)
    sizes : array of shape (flows,)
        Bytes.
    readers : array
        Atoms that read a flow f: from ``flows[f, FIRST_READER]`` up to that of the next.
    neighbours, first : arrays
        Those of an atom a: ``neighbours[first[AFTER, a]:first[AFTER, a + 1]]``, or BEFORE.
    links : array of shape (2, stages, stages)
    places : array of shape (2, stages)
    warmups : array of int
        The rules by which micro-batches in flight are tried; the best counts.
    orders : array of shape (places, actions, 3)
        Where several stages share a place: stage, F or B (`THERE`, `BACK`) and micro-batch of what it does in turn.
    alive : array of shape (places, times, chunks)
        How many micro-batches of each of its stages a place keeps at once, at the times at which it may keep most.
    host_ns : float
        What a stage loses to one end of a message.
    num_microbatches, num_simulated : int
        Of a step; those beyond the simulated ones take the busiest stage's time each.
    line, full, halved : bool
        Whether what flows passes through every stage on its way; whether no stage may be empty; whether backwards run
        in halves.
    """

    works: Floats
    flows: Ints
    sizes: Floats
    readers: Ints
    neighbours: Ints
    first: Ints
    links: Floats
    places: Floats
    warmups: Ints
    orders: Ints
    alive: Ints
    host_ns: float
    num_microbatches: int
    num_simulated: int
    line: bool
    full: bool
    halved: bool


class Loads(NamedTuple):
    """What the stages of one cut take; overwritten by every cut that is valued.

    Attributes
    ----------
    works : array of shape (stages, 5)
    edges_ns : array of shape (2, stages, stages)
        By the stage that gets something, then by the one that it comes from; below 0 where nothing does.
    sources : array of shape (2, stages, stages)
        Those that it comes from, as many as `numbers` says.
    ends_ns : array of shape (2, stages, micro-batches)
        When each F and B ends.
    free_ns : array of shape (stages,)
        When a stage is done with what it did so far.
    numbers : array of shape (7, stages)
    """

    works: Floats
    edges_ns: Floats
    sources: Ints
    ends_ns: Floats
    free_ns: Floats
    numbers: Ints


def _loads(cut: Cut) -> Loads:
    """Return room for what the stages of a cut take."""
    stages = cut.places.shape[1]
    return Loads(
        np.zeros((stages, 5)),
        np.full((2, stages, stages), -1.0),
        np.zeros((2, stages, stages), np.int64),
        np.zeros((2, stages, cut.num_simulated)),
        np.zeros(stages),
        np.zeros((7, stages), np.int64),
    )


class Room(NamedTuple):
    """Room for a walk: stages of each atom now, changed, and at best; what is dragged along; and two cuts' loads."""

    stage: Ints
    trial: Ints
    best: Ints
    stack: Ints
    dice: Dice
    at: Loads
    valued: Loads


def room_for(cut: Cut, stages: Ints, seed: int) -> Room:
    """Return room for a walk from a cut."""
    return Room(
        stages,
        stages.copy(),
        stages.copy(),
        np.zeros(len(stages) + 1, np.int64),
        np.array([Random(seed).getrandbits(63) | 1], np.uint64),  # noqa: S311 - no secrets here
        _loads(cut),
        _loads(cut),
    )
