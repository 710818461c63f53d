"""Measuring a model block by block: each distinct block once, by itself.

For models larger than the memory at hand, and for the few operators that a profile to be reused does not
hold. In-context times inside a block, scaled to the block. Leaves out what lies between blocks: caches
that one leaves warm for the next.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from costmodel.capture.capture import Capture
from costmodel.capture.clock import Clock
from costmodel.capture.parts import Part, extract
from costmodel.model.graph import LOSS, Operator, OperatorGraph
from costmodel.model.profile import OperatorTimes
from costmodel.profiling.journal import Journal
from costmodel.profiling.measure.assemble import Assembled, Round, assemble, coverage
from costmodel.profiling.measure.backward_split import weight_shares
from costmodel.profiling.measure.blocks import Block, make_runnable
from costmodel.profiling.measure.optimizer import time_optimizer
from costmodel.profiling.measure.rounds import measure_round, settle
from costmodel.profiling.measure.timing import MarkCost, time_in_context, time_whole, trained_parameters
from costmodel.profiling.measure.walk import Walk

WARM_UP_STEPS = 2


@dataclass(slots=True)
class BlockSums:
    """Times by operator, accumulation by parameter, and what the optimizer takes over all blocks (ns)."""

    times: dict[str, OperatorTimes] = field(default_factory=dict)
    accumulate_of: dict[str, int] = field(default_factory=dict)
    optimizer_ns: int = 0
    sum_ns: list[int] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    wall_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """What blocks are measured with."""

    captured: Capture
    sizes: tuple[int, ...]
    device: torch.device
    clock: Clock
    marks: MarkCost
    repeats: int
    journal: Journal
    say: Callable[[str], None]


def measure_blocks(bench: Bench, blocks: Iterable[Block]) -> BlockSums:
    """Measure each distinct block once and add up.

    The times of blocks that are alike are the same; they represent each of them.
    """
    blocks = list(blocks)
    distinct = {block.equivalence_key: block for block in blocks}
    known: dict[str, tuple[Assembled, int]] = {}
    for i, (equivalence_key, block) in enumerate(distinct.items()):
        bench.say(f"block {i + 1} of {len(distinct)} distinct ones ({len(block.operators)} operators)")
        known[equivalence_key] = _measure(bench, block)
    sums = BlockSums(sum_ns=[0] * len(bench.sizes), step_ns=[0] * len(bench.sizes), wall_ns=[0] * len(bench.sizes))
    for block in blocks:
        found, optimizer_ns = known[block.equivalence_key]
        _add(sums, block, found, optimizer_ns)
        _add_accumulation(sums, bench.captured, block, distinct[block.equivalence_key], found)
    return sums


def _measure(bench: Bench, block: Block) -> tuple[Assembled, int]:
    """Return a block's times, its last operator being a made-up loss unless it holds the model's own."""
    rounds, shares, optimizer_ns = [], [], 0
    for size in bench.sizes:
        running = _Running(bench, block, size)
        item, key = bench.journal.item, f"block/{block.equivalence_key}/{size}"
        rows = [item(f"{key}/step/{i}", running.step) for i in range(bench.repeats)]
        rounds.append([Round.from_list(row) for row in rows])
        shares.append(item(f"{key}/shares", running.shares))
        optimizer_ns = item(f"{key}/optimizer", running.optimizer_ns)
    operators = tuple(Operator(n, LOSS if n == LOSS else "", output_bytes=()) for n in running.names)
    return assemble(OperatorGraph("block", operators, ()), rounds, shares), optimizer_ns


class _Running:
    """A block at one micro-batch size, made and warmed up when first something of it is measured."""

    def __init__(self, bench: Bench, block: Block, microbatch_size: int) -> None:
        self.bench = bench
        self.block = block
        self.size = microbatch_size
        self.names = (*(name for name in block.operators if name != LOSS), LOSS)

    def step(self) -> list[Any]:
        """Measure one round."""
        bench = self.bench
        return measure_round(self.whole, self.walk, self.captured.model, bench.clock, bench.marks).to_list()

    def shares(self) -> dict[str, float]:
        """Measure which share of each backward is weight gradient."""
        self.captured.model.module.zero_grad(set_to_none=True)
        return weight_shares(self.captured, self.size, self.bench.clock, self.bench.repeats)

    def optimizer_ns(self) -> int:
        """Time the optimizer over the block's parameters."""
        return time_optimizer(self.captured.model.module, self.bench.clock)

    @cached_property
    def captured(self) -> Capture:
        """The block with values."""
        return make_runnable(self.bench.captured, self.block, self.size, self.bench.device)

    @cached_property
    def whole(self) -> Part:
        """All of it as one part, warmed up."""
        part = extract(self.captured, self.captured.operators)
        for _ in range(WARM_UP_STEPS):
            time_whole(part, self.captured.model, self.bench.clock)
        settle(part, self.captured.model, self.bench.clock)
        return part

    @cached_property
    def walk(self) -> Walk:
        """It node by node, warmed up."""
        walk = Walk(self.captured)
        for _ in range(WARM_UP_STEPS):
            time_in_context(walk, self.captured.model, self.bench.clock)
        return walk


def _add(sums: BlockSums, block: Block, found: Assembled, optimizer_ns: int) -> None:
    """Add one block, under its own operators' names."""
    has_loss = LOSS in block.operators
    own = [name for name in block.operators if name != LOSS]
    times = dict(zip(own, found.times, strict=False))
    if has_loss:
        times[LOSS] = found.times[-1]
    made_up = None if has_loss else found.times[-1]
    sums.times.update(times)
    sums.optimizer_ns += optimizer_ns
    for i, step_ns in enumerate(found.step_ns):
        extra = made_up.forward_ns[i] + made_up.backward_input_ns[i] if made_up else 0
        share = 1 - extra / step_ns if step_ns else 0.0
        sums.step_ns[i] += step_ns - extra
        sums.sum_ns[i] += round(found.unscaled["sum_ns"][i] * share)
        sums.wall_ns[i] += round(found.unscaled["wall_ns"][i] * share)


def _add_accumulation(sums: BlockSums, captured: Capture, block: Block, measured: Block, found: Assembled) -> None:
    """Give a block's parameters the times of their like in the block that was measured; tied ones count once."""
    names = trained_parameters(captured, measured.operators)
    known = dict(zip(names, found.accumulate_ns, strict=True))
    for mine, theirs in zip(block.operators, measured.operators, strict=True):
        if mine != LOSS:
            pairs = zip(captured.groups[mine].parameters, captured.groups[theirs].parameters, strict=False)
            sums.accumulate_of.update({name: known[other] for name, other in pairs if other in known})


def unscaled(sums: BlockSums) -> Mapping[str, list[float]]:
    """Return what `Assembled.unscaled` holds, added up over blocks."""
    pairs = list(zip(sums.sum_ns, sums.step_ns, strict=True))
    return {
        "sum_ns": [float(value) for value in sums.sum_ns],
        "step_ns": [float(value) for value in sums.step_ns],
        "wall_ns": [float(value) for value in sums.wall_ns],
        "coverage": [coverage(total, step) for total, step in pairs],
    }
