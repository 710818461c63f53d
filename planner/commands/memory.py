"""Say what a model takes of each device by strategy, whether that fits, and what would make it fit.

    penstock memory llama3-8b --devices 8
    penstock memory config.json --devices 64 --device a100-sxm-80 --sequence 1024
    penstock memory profile.json --devices 4

MODEL: a profile, or what `penstock model` describes (an id of its table, a config.json, module:function, zoo:NAME).
Every row is a plan with all choices fixed; `penstock plan` with the same flags makes it.
"""

import argparse
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.command import DEFAULT_DEVICE
from costmodel.errors import UsageError
from costmodel.machines.cluster_parts import GIB
from costmodel.roofline import OPTIMIZERS
from costmodel.stages.strategies.trainers import trainers
from planner.commands.answer import Answer
from planner.commands.flags import positive, room

if TYPE_CHECKING:
    from costmodel.model.profile import Profile
    from planner.answer.memory_table import MemoryRow, MemoryTable
    from planner.report.summary.text import Table

NUM_TERMS = 5
WIDTH = 100
"""Columns of the screen that a table takes at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("model", metavar="MODEL", help="profile, or what penstock model describes")
    parser.add_argument("--devices", type=positive, required=True, metavar="N")
    parser.add_argument(
        "--device", default="", metavar="ID|FILE", help=f"catalogue id or file (default {DEFAULT_DEVICE})"
    )
    parser.add_argument("--cluster", metavar="FILE", help="cluster file, in place of typical hosts of the device")
    parser.add_argument(
        "--batch", type=positive, default=0, metavar="B", help="samples of one step (default: enough to fill pipelines)"
    )
    parser.add_argument("--microbatch-size", type=positive, default=1, metavar="b", help="(default 1)")
    parser.add_argument("--sequence", type=positive, default=0, metavar="N", help="tokens of a sample")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="", help="of training (default: bf16)")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adam", help="(default adam)")
    parser.add_argument("--trainer", default="", metavar="NAME", help=f"whose habits hold, of {', '.join(trainers())}")
    parser.add_argument(
        "--lora-rank", type=positive, default=0, metavar="R", help="as of penstock model: adapters alone train"
    )
    parser.add_argument("--forward-only", action="store_true", help="no gradients, no optimizer: evaluation alone")
    parser.add_argument(
        "--memory-margin", type=room, default=0, metavar="GiB", help="to stay free beyond the upper bound (default 0)"
    )


def run(args: argparse.Namespace) -> Answer:
    """Describe the model, evaluate the strategies and show them."""
    gc.disable()  # what plans are made of lives until the table is done: looking for garbage takes a sixth of the time
    try:
        return _answer(args)
    finally:
        gc.enable()


def _answer(args: argparse.Namespace) -> Answer:
    from costmodel.machines.cluster import read_cluster
    from planner.answer.held_memory import FixedPlans
    from planner.answer.memory_table import MemoryTable

    describe, sequence = _describer(args)
    options: dict[str, object] = {
        "optimizer": "none" if args.forward_only else args.optimizer,
        "precision": args.precision,
        "trainer": args.trainer,
        "memory_margin_bytes": args.memory_margin,
    }
    cluster = read_cluster(args.cluster) if args.cluster else None
    plans = FixedPlans(describe, args.devices, args.batch, cluster, options)
    found = MemoryTable(plans, sequence, args.microbatch_size)
    rows = found.rows()
    if not rows:
        raise UsageError(f"no strategy can be priced: {'; '.join(found.refusals())}")
    body: dict[str, object] = {"rows": [row.to_json() for row in rows], "device_bytes": plans.device_bytes}
    return Answer(body, [*_tables(found, rows), *_changes(rows), *(f"left out: {why}" for why in found.refusals())])


def _describer(args: argparse.Namespace) -> "tuple[Callable[[int], Profile], int]":
    """Return what describes the model at a sequence, and the sequence; 0 for a model that has no other than its own."""
    from costmodel.architectures.command import make
    from costmodel.model.profile import read_profile

    if _is_profile(args.model):
        if args.sequence or args.device or args.lora_rank:
            raise UsageError(
                f"{args.model} is a profile, made at one sequence length on one device: leave out --sequence, --device "
                "and --lora-rank, or name the model itself"
            )
        profile = _asked(read_profile(args.model), args)
        return lambda _: profile, 0
    size = args.microbatch_size

    @cache
    def describe(sequence: int) -> "Profile":
        made, _ = make(
            args.model, args.device or DEFAULT_DEVICE, (size,), sequence or args.sequence, args.precision, args.trainer,
            lora_rank=args.lora_rank,
        )  # fmt: skip
        return _asked(made, args)

    own = describe(0).extra.get("sequence")
    return describe, own if isinstance(own, int) else 0


def _is_profile(name: str) -> bool:
    """Whether a name is that of a file which says that it is a profile."""
    from costmodel.files import read_json
    from costmodel.model.profile import PROFILE

    if not name.endswith((".json", ".json.gz")) or not Path(name).exists():
        return False
    body = read_json(name).value
    return isinstance(body, dict) and body.get("format") == PROFILE.format


def _asked(profile: "Profile", args: argparse.Namespace) -> "Profile":
    """Return a profile as it is trained, or with nothing trained in it, where one block at a time keeps anything."""
    from costmodel.model.frozen import train_alone

    if not args.forward_only:
        return profile
    graph, frozen = profile.graph, train_alone(profile.graph, ())
    first = next(filter(None, graph.blocks), "")
    operators = (
        replace(operator, saved=own.saved if block in ("", first) else ())
        for operator, own, block in zip(frozen.operators, graph.operators, graph.blocks, strict=True)
    )
    return replace(profile, graph=replace(frozen, operators=tuple(operators)))


def _tables(found: "MemoryTable", rows: "Sequence[MemoryRow]") -> "list[Table]":
    """Return the rows as people read them: what fits and what would, then the terms of the fullest rank."""
    from planner.report.summary.text import Table, size

    samples, device = rows[0].microbatch_size, size(found.plans.device_bytes)
    cells = [
        (
            row.strategy,
            size(row.held.point_bytes),
            size(row.held.upper_bytes),
            row.held.fits,
            str(row.largest_microbatch_size),
            "-" if row.longest_sequence is None else str(row.longest_sequence),
        )
        for row in rows
    ]
    columns = ("strategy", "peak", "at most", "fits", "largest micro-batch", "longest sequence")
    title = f"what the fullest of {found.plans.num_devices} devices of {device} holds, micro-batches of {samples}"
    return [Table(columns, cells, title, WIDTH), _terms(rows)]


def _terms(rows: "Sequence[MemoryRow]") -> "Table":
    """Return what each row's fullest rank holds by term: the largest terms, and all others together."""
    from planner.report.summary.text import Table

    held = [{name: term["point_bytes"] for name, term in row.held.terms.items()} for row in rows]
    names = sorted({name for terms in held for name in terms}, key=lambda name: -max(row.get(name, 0) for row in held))
    shown = names[:NUM_TERMS]
    cells = []
    for row, terms in zip(rows, held, strict=True):
        sizes = [terms.pop(name, 0) for name in shown]
        cells.append((row.strategy, *(f"{size_bytes / GIB:.2f}" for size_bytes in (*sizes, sum(terms.values())))))
    columns = ("strategy", *(name.replace("_", " ") for name in shown), "others")
    return Table(columns, cells, "its peak by term, in GiB", WIDTH)


def _changes(rows: "Sequence[MemoryRow]") -> Iterator[str]:
    """Say what makes the rows fit that do not."""
    yield from (f"{row.strategy} fits with {row.change}" for row in rows if row.change)
    if never := [row.strategy for row in rows if row.change == ""]:
        yield f"no one change makes {', '.join(never)} fit, with full recompute or without"
