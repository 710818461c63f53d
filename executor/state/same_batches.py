"""Whether all ranks were given one batch: what several of them hold of the same rows must be the same.

A stage reads inputs, another one targets; a loader that shuffles on each rank by itself pairs inputs of one batch with
targets of another, and no tensor that is sent tells. In the first steps ranks compare checksums of every row that they
were given. From then on a sample of each input travels with the sum of the losses, and where sums show that ranks
differ they compare again, before an optimizer steps. A rank that has asked `inputs_needed` answers only for the rows
that it reads; None and zeros stand for nothing. Leaves out samples whose inputs and targets no two ranks were given.
"""

import json
from collections.abc import Mapping, Sequence

import torch

from costmodel.capture.batches import TARGETS
from costmodel.capture.digests import checksum, digest_of
from executor.communication.groups import RefusedAlike
from executor.context import RankContext
from executor.plan_match.agreement import ranks_in_words
from executor.stages.stage import Stage
from executor.state.batch_leaves import BY_FUNCTION, Leaf
from executor.state.microbatch_loader import MicrobatchLoader

WHOLE_STEPS = 3
"""Batches of which every row is compared."""

LEAVES, SAMPLE, BITS = 8, 1024, 20
"""Inputs that are looked at in one step, elements of each, and bits of a checksum, whose square is exact in a sum."""

_EVERY = -1


class OneBatch:
    """What one rank says of its batches.

    Parameters
    ----------
    context : RankContext
    loader : MicrobatchLoader
    stages : mapping of int to Stage
        This rank's.

    Attributes
    ----------
    only_needed : bool
        Whether this rank answers only for what it reads.
    """

    def __init__(self, context: RankContext, loader: MicrobatchLoader, stages: Mapping[int, Stage]) -> None:
        self._context, self._loader, self._stages, self._groups = context, loader, stages, context.groups
        self.only_needed = False
        self._whole = WHOLE_STEPS

    def needed(self) -> dict[str | int, tuple[tuple[int, int], ...]]:
        """Return input name or position (and ``targets``) -> ranges of samples that this rank reads.

        They are those of the plan: where micro-batches are given one by one, each stands for as many as it has there.
        """
        context, size = self._context, self._loader.microbatch_size
        of_input = dict(zip(context.capture.inputs, self._loader.keys(), strict=True))
        needed: dict[str | int, set[int]] = {}
        for index, stage in self._stages.items():
            firsts = context.microbatches_of(index)
            samples = {k * size + i for k in firsts for i in range(stage.multiple * size)}
            keys: list[str | int] = [of_input[name] for name in stage.part.raw_inputs]
            keys += [TARGETS] if stage.part.has_loss and context.capture.model.has_targets else []
            for key in keys:
                needed[key] = needed.get(key, set()) | samples
        return {key: _ranges(samples) for key, samples in needed.items()}

    def check(self) -> None:
        """Compare all rows of the batch that is loaded, while this is one of the first; collective.

        Shapes of a step's own are compared in each: a message is as long as its receiver takes it to be.

        Raises
        ------
        RefusedAlike
        """
        if self._loader.varies and self._groups.size > 1:
            self._compare_shapes()
        if self._whole and self._groups.size > 1:
            self._whole -= 1
            self.compare()

    def compare(self) -> None:
        """Compare all rows of the batch that is loaded; collective.

        Raises
        ------
        RefusedAlike
            Names the first input that differs, and the ranks.
        """
        own: dict[str, dict[int, int]] = {}
        for leaf in self._loader.given():
            if torch.is_tensor(leaf.value):
                own.setdefault(leaf.name, {}).update(self._rows(leaf))
        told = [json.loads(row) for row in self._groups.all_gather_bytes(json.dumps(own).encode())]
        for name in dict.fromkeys(name for row in told for name in row):
            rows = [row.get(name, {}) for row in told]
            for place in dict.fromkeys(place for row in rows for place in row):
                there = {rank: row[place] for rank, row in enumerate(rows) if place in row}
                others = [rank for rank, value in there.items() if value != there[min(there)]]
                if others:
                    raise RefusedAlike(_words(name, int(place), others, min(there)))

    def _compare_shapes(self) -> None:
        rows = self._groups.all_gather_bytes(digest_of(self._loader.shapes()).encode())
        if others := [rank for rank, row in enumerate(rows) if row != rows[0]]:
            was = "was" if len(others) == 1 else "were"
            raise RefusedAlike(
                f"{ranks_in_words(others)} {was} given a batch of other shapes than rank 0, and messages are as long "
                "as follows from them: let all ranks load the same rows in the same order, padded alike"
            )

    def sample(self, step: int) -> list[float]:
        """Return what a rank adds to the sum of all: for some inputs whether it answers, its checksum, and its square.

        Nothing while all rows are compared.
        """
        if self._groups.size == 1:
            return []
        found: list[float] = []
        leaves = self._in_turn(step)
        for number in range(LEAVES):
            value = self._sampled(leaves[number], step) if number < len(leaves) and not self._whole else None
            found += [0.0, 0.0, 0.0] if value is None else [1.0, float(value), float(value * value)]
        return found

    def differ(self, sums: Sequence[float]) -> bool:
        """Whether sums of all ranks' samples say that ranks differ: as checksums that vary around their mean."""
        return any(
            count * squares != total * total
            for count, total, squares in zip(sums[::3], sums[1::3], sums[2::3], strict=True)
        )

    def _in_turn(self, step: int) -> list[Leaf]:
        """Return the tensors whose turn it is, the same on all ranks: as the model was captured, the targets last."""
        leaves = self._loader.given()
        if len(leaves) <= LEAVES:
            return leaves
        return [leaves[(step * LEAVES + i) % len(leaves)] for i in range(LEAVES)]

    def _sampled(self, leaf: Leaf, step: int) -> int | None:
        value = leaf.value
        if not torch.is_tensor(value) or value.device.type != "cpu" or value.layout is not torch.strided:
            return None  # to look at a device's tensor the host would wait for the device
        if self.only_needed and not self._answers_for_whole(leaf):
            return None
        flat = value.detach().reshape(-1)
        stride = max(1, flat.numel() // SAMPLE)
        some = flat[step % stride :: stride]
        return checksum(some) % 2**BITS if some.any() else None

    def _answers_for_whole(self, leaf: Leaf) -> bool:
        """Whether this rank answers for all of a leaf."""
        if not self.only_needed:
            return True
        size, number = self._loader.microbatch_size, leaf.microbatch
        first, stop = (0, self._loader.batch_size) if number is None else (number * size, (number + 1) * size)
        return any(start <= first and stop <= end for start, end in self.needed().get(leaf.key, ()))

    def _rows(self, leaf: Leaf) -> dict[int, int]:
        """Return checksums of the micro-batches of a leaf that this rank answers for; of one that is not cut, one."""
        value, dimension = leaf.value, leaf.dimension
        there = self._loader.num_samples
        ranges = self.needed().get(leaf.key, ()) if self.only_needed else ((0, there),)
        if not ranges or not value.any():
            return {}
        if leaf.microbatch is not None:
            return {leaf.microbatch: checksum(value)} if self._answers_for_whole(leaf) else {}
        if dimension is None or dimension == BY_FUNCTION:
            return {_EVERY: checksum(value)}
        size = self._loader.microbatch_size
        numbers = {sample // size for first, stop in ranges for sample in range(first, min(stop, there), size)}
        return {number: checksum(value.narrow(dimension, number * size, size)) for number in sorted(numbers)}


def _ranges(samples: set[int]) -> tuple[tuple[int, int], ...]:
    """Return a set of numbers as ranges [first, stop)."""
    starts = sorted(i for i in samples if i - 1 not in samples)
    stops = sorted(i + 1 for i in samples if i + 1 not in samples)
    return tuple(zip(starts, stops, strict=True))


def _words(name: str, place: int, others: Sequence[int], like: int) -> str:
    rows = "" if place == _EVERY else f" of micro-batch {place}"
    was = "was" if len(others) == 1 else "were"
    return (
        f"{name}: {ranks_in_words(others)} {was} given other values{rows} than rank {like}, and a step has one batch: "
        "let all ranks load the same rows in the same order (one seed for the sampler of all ranks, no "
        "DistributedSampler between them), or ask pipe.inputs_needed and give each rank what it reads alone"
    )
