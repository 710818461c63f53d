"""Families as columns of numbers. Leaves out what they take and hold."""

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.search.space.even_stages import Ints


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the first index of each distinct row of columns, and each row's number among the distinct ones.

    Numbers are at least 0. One key a row is sorted, which takes a tenth of what sorting rows does.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return first, number.reshape(-1)


@dataclass(frozen=True)
class FamilyRows:
    """The families of a table, column by column.

    Attributes
    ----------
    division : array of int
        Row of `LinePrices`.
    tensor, sequence, context, expert, expert_tensor, data, size, count, places, chunks, zero : array of int
        ``size`` samples a micro-batch, ``count`` of them on each replica.
    shard_group : array of int
        Replicas that divide states under ZeRO; 0 for all.
    recompute, offload, arrangement : array of int
        Positions in `RECOMPUTE`, `OFFLOAD`, and in `FamilySpace.arrangements`.
    """

    division: Ints
    tensor: Ints
    sequence: Ints
    context: Ints
    expert: Ints
    expert_tensor: Ints
    data: Ints
    size: Ints
    count: Ints
    places: Ints
    chunks: Ints
    arrangement: Ints
    shard_group: Ints
    zero: Ints
    recompute: Ints
    offload: Ints

    def __len__(self) -> int:
        return len(self.division)

    @cached_property
    def ranks(self) -> Ints:
        """Ranks of one place."""
        return self.tensor * self.context * self.data

    @cached_property
    def sharers(self) -> Ints:
        """Ranks that divide states under ZeRO."""
        return np.where(self.shard_group > 0, self.shard_group, self.data) * self.context

    @cached_property
    def replica_ranks(self) -> Ints:
        """Ranks of one replica of a place, with the replicas that its experts spread over."""
        block, parts = self.tensor * self.context, self.expert * self.expert_tensor
        return block * np.maximum(1, np.where(parts % block == 0, parts // block, 1))

    @cached_property
    def num_stages(self) -> Ints:
        """Stages of a pipeline."""
        return self.places * self.chunks

    def where(self, mask: NDArray[np.bool_]) -> "FamilyRows":
        """Return some of the rows."""
        return FamilyRows(*(getattr(self, field.name)[mask] for field in fields(self)))

    def and_again(self, mask: NDArray[np.bool_], arrangement: int) -> "FamilyRows":
        """Return the rows, and behind them some of them in another arrangement."""
        more = self.where(mask)
        more = replace(more, arrangement=np.full(len(more), arrangement))
        pairs = ((getattr(self, field.name), getattr(more, field.name)) for field in fields(self))
        return FamilyRows(*map(np.concatenate, pairs))
