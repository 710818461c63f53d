"""Profiles of models that are not measured whole: too large for the memory, or mostly known already.

`--memory-limit`: captured on `meta`, measured block by block. `--reuse OLD`: only operators whose kind,
shapes or dtype the old profile does not hold are measured, as blocks. Leaves out one block's effect on the
next (`blockwise`).
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from costmodel.errors import UsageError
from costmodel.model.graph import LOSS, OperatorGraph
from costmodel.model.profile import OperatorTimes, Profile, read_profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.profiling.device import describe_device
from costmodel.profiling.measure.blocks import Block, split_into_blocks
from costmodel.profiling.measure.blockwise import Bench, BlockSums, measure_blocks, unscaled
from costmodel.profiling.measure.memory import saved_bytes

STATE_COPIES = 4
"""Parameter, gradient and Adam's two moments."""


def state_bytes(graph: OperatorGraph, microbatch_size: int) -> int:
    """Return what training holds at once: parameters, gradients, moments and everything saved."""
    return STATE_COPIES * sum(p.size_bytes for p in graph.parameters) + saved_bytes(graph, microbatch_size)


def profile_in_blocks(
    bench: Bench, graph: OperatorGraph, alike: Mapping[str, str], dtype: str, limit_bytes: int
) -> Profile:
    """Measure all operators, each distinct block once."""
    size = bench.sizes[-1]
    names = [operator.name for operator in graph.operators]
    blocks = split_into_blocks(graph, alike, names, size, limit_bytes)
    sums = measure_blocks(bench, blocks)
    counts = {
        "blocks": len(blocks),
        "distinct": len({block.equivalence_key for block in blocks}),
        "limit_bytes": limit_bytes,
    }
    whole = _whole(sums.times, sum(sums.accumulate_of.values()), sums.optimizer_ns, len(bench.sizes))
    extra: dict[str, object] = {"unscaled": unscaled(sums), "in_blocks": counts}
    return _profile(bench, graph, dtype, sums.times, whole, extra, sums.accumulate_of)


def profile_reusing(
    bench: Bench, graph: OperatorGraph, alike: Mapping[str, str], dtype: str, old: Profile, name: str
) -> Profile:
    """Measure what an old profile of the same device does not hold, and take the rest from there.

    Raises
    ------
    UsageError
        When the old profile is of another device or dtype, or lacks a micro-batch size.
    """
    known = _known(old, describe_device(bench.device).name, dtype, bench.sizes, name)
    new = [operator.name for operator in graph.operators if alike[operator.name] not in known]
    bench.say(f"{len(new)} of {len(graph.operators)} operators are new")
    blocks: list[Block] = split_into_blocks(graph, alike, new, bench.sizes[-1]) if new else []
    sums = measure_blocks(bench, blocks) if blocks else BlockSums()
    times = {o.name: sums.times.get(o.name) or known[alike[o.name]] for o in graph.operators}
    share = _parameter_bytes(graph) / max(1, _parameter_bytes(old.graph))
    added = _accumulation(graph, old, alike, sums)
    accumulate_ns = sum(added.values()) if added else round(old.whole.accumulate_ns * share)
    whole = _whole(times, accumulate_ns, round(old.whole.optimizer_ns * share), len(bench.sizes))
    shown = unscaled(sums) if blocks else old.extra["unscaled"]
    extra = {"unscaled": shown, "reused": {"operators": len(times) - len(new), "measured": len(new)}}
    return _profile(bench, graph, dtype, times, whole, extra, added)


def read_old(path: str | Path) -> Profile:
    """Read the profile to be reused.

    Raises
    ------
    UsageError
        When it holds no digests of its operators.
    """
    old = read_profile(path)
    if "signatures" not in old.extra or old.extra.get("dry_run"):
        raise UsageError(f"--reuse {path}: it holds no measured operators to compare with; profile without --reuse")
    return old


def _known(old: Profile, device: str, dtype: str, sizes: tuple[int, ...], path: str) -> dict[str, OperatorTimes]:
    """Return the old times at these sizes by the operators' digests."""
    if old.device.name != device or old.dtype != dtype:
        raise UsageError(
            f"--reuse {path}: measured on {old.device.name} with {old.dtype}, this is {device} with {dtype}; begin anew"
        )
    missing = [size for size in sizes if size not in old.microbatch_sizes]
    if missing:
        raise UsageError(f"--reuse {path}: it has the micro-batch sizes {list(old.microbatch_sizes)}, not {missing}")
    places = [old.microbatch_sizes.index(size) for size in sizes]
    digests = old.extra["signatures"]
    assert isinstance(digests, dict)  # noqa: S101 - written by the profiler

    def pick(row: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(row[place] for place in places)

    return {
        digests[operator.name]: OperatorTimes(
            pick(times.forward_ns),
            pick(times.backward_input_ns),
            pick(times.backward_weight_ns),
            tuple(times.spread[place] for place in places),
            times.launches.pick(places) if times.launches else None,
            pick(times.working_bytes) if times.working_bytes else (),
        )
        for operator, times in zip(old.graph.operators, old.times, strict=True)
    }


def _accumulation(graph: OperatorGraph, old: Profile, alike: Mapping[str, str], sums: BlockSums) -> dict[str, int]:
    """Return what accumulation takes by parameter, of old ones from their like; nothing where one is not known."""
    if not old.accumulate_of:
        return {}
    digests = old.extra["signatures"]
    assert isinstance(digests, dict)  # noqa: S101 - written by the profiler
    known = {digests[operator.name]: operator.parameters for operator in old.graph.operators}
    found: dict[str, int] = {}
    for operator in graph.operators:
        pairs = zip(operator.parameters, known.get(alike[operator.name], ()), strict=False)
        found.update({name: old.accumulate_of[like] for name, like in pairs if like in old.accumulate_of})
    found.update(sums.accumulate_of)
    return found if all(p.name in found for p in graph.parameters if p.trainable) else {}


def _parameter_bytes(graph: OperatorGraph) -> int:
    return sum(parameter.size_bytes for parameter in graph.parameters if parameter.trainable)


def _whole(
    times: Mapping[str, OperatorTimes], accumulate_ns: int, optimizer_ns: int, num_sizes: int
) -> WholeModelMeasurements:
    steps = tuple(
        accumulate_ns + sum(t.forward_ns[i] + t.backward_input_ns[i] + t.backward_weight_ns[i] for t in times.values())
        for i in range(num_sizes)
    )
    loss = times[LOSS]
    return WholeModelMeasurements(steps, loss.forward_ns[-1] + loss.backward_input_ns[-1], accumulate_ns, optimizer_ns)


def _profile(
    bench: Bench,
    graph: OperatorGraph,
    dtype: str,
    times: Mapping[str, OperatorTimes],
    whole: WholeModelMeasurements,
    extra: dict[str, object],
    accumulate_of: Mapping[str, int],
) -> Profile:
    ordered = tuple(times[operator.name] for operator in graph.operators)
    if not all(row.working_bytes for row in ordered):
        bench.say(
            "what operators have alive while they run is not measured in pieces: plans of this profile may need up to "
            "a fifth more memory than they say; plan with a --memory-limit below the devices' memory"
        )
    made = {"torch": torch.__version__, "repeats": bench.repeats}
    device = describe_device(bench.device)
    return Profile(graph, device, dtype, bench.sizes, ordered, whole, None, made, extra, accumulate_of)
