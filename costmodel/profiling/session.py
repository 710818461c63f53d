"""One run of a profiler over all items of a model, each measured once and kept in the journal.

Leaves out what one measurement is (`costmodel.profiling.measure`), and models that are measured block by block.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from functools import partial
from typing import TypeVar

import torch

from costmodel.capture.batches import TrainingModel, take
from costmodel.capture.capture import Capture
from costmodel.capture.clock import DeviceClock, clock_for
from costmodel.capture.heap import drop_unreachable
from costmodel.capture.parts import extract
from costmodel.capture.works import with_works
from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.machines.links import LINKS, Links
from costmodel.model.graph import OperatorGraph
from costmodel.model.origin import Origin
from costmodel.model.profile import OperatorTimes, Profile, Shards
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.profiling.device import clock_mhz, describe_device, describe_settings
from costmodel.profiling.journal import Journal
from costmodel.profiling.links import measure_local_links
from costmodel.profiling.load_generators import load_generators
from costmodel.profiling.measure.assemble import Round, assemble
from costmodel.profiling.measure.backward_split import weight_shares
from costmodel.profiling.measure.blocks import signatures
from costmodel.profiling.measure.memory import counted_graph, observe_memory, saved_bytes
from costmodel.profiling.measure.optimizer import time_optimizer
from costmodel.profiling.measure.peak_memory import peak_memory_bytes
from costmodel.profiling.measure.records import doubts
from costmodel.profiling.measure.rounds import Rounds, settle
from costmodel.profiling.measure.tensor import degrees_without_shards, shard_times
from costmodel.profiling.measure.timing import MarkCost, measure_mark_cost, trained_parameters
from costmodel.profiling.measure.walk import Walk
from costmodel.profiling.measure.workspace_memory import working_bytes
from costmodel.profiling.options import Options
from costmodel.profiling.progress import Progress

Found = TypeVar("Found")
WARM_UP_STEPS = 2


def measured_links(options: Options, journal: Journal, say: Callable[[str], None]) -> Links | None:
    """Measure the links between two local ranks, where they are asked for and there are two devices."""
    if not options.links:
        return None
    if options.device == "cuda" and torch.cuda.device_count() < 2:
        say("one GPU: no links to measure; name the machines' in a cluster, or run penstock links where there are two")
        return None
    say("measuring links between two local ranks")
    body = journal.item("links", lambda: LINKS.form.write(measure_local_links(2, options.device)))
    return LINKS.form.read(Node(body, "/links", "journal"))


class Session:
    """One run over all items of one model, each taken from the journal when it is there."""

    def __init__(
        self,
        options: Options,
        sizes: tuple[int, ...],
        captured: Capture,
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self.options = options
        self.sizes = sizes
        self.captured = captured
        self.journal = journal
        self.device = torch.device(options.device)
        self.clock = clock_for(self.device, options.threads)
        self.progress = Progress(say, sum(sizes) * (options.repeats + WARM_UP_STEPS))

    def profile(self) -> Profile:
        """Measure whatever is missing and return the profile."""
        item = self.journal.item
        with load_generators(self.options, self.sizes[-1]):
            marks = MarkCost(*item("marks", self._marks))
            rounds = self._at_each_size(partial(self._rounds, marks))
            self.progress.say("splitting backwards into input and weight gradients")
            shares = self._at_each_size(self._kept("shares", self._shares))
            optimizer_ns = item("optimizer", lambda: time_optimizer(self.captured.model.module, self.clock))
        working = self._at_each_size(self._kept("working", self._working))
        peaks = self._at_each_size(self._kept("highest", self._peak_memory))
        links = measured_links(self.options, self.journal, self.progress.say)
        self.progress.say("looking at memory")
        measured = len(self.sizes)
        graph = with_works(counted_graph(self.captured, self.sizes), self.captured)
        found = assemble(graph, rounds[:measured], shares[:measured])
        shards = self._shards(dict(zip(self.captured.operators, found.times, strict=True)))
        return Profile(
            graph,
            describe_device(self.device),
            self.options.dtype_of(self.captured.model),
            self.sizes,
            tuple(
                replace(times, working_bytes=tuple(one[operator.name] for one in working[:measured]))
                for operator, times in zip(graph.operators, found.times, strict=True)
            ),
            WholeModelMeasurements(found.step_ns, found.loss_ns, sum(found.accumulate_ns), optimizer_ns, found.split),
            links,
            _provenance(self.options),
            self._extra(found.unscaled, peaks, graph),
            dict(zip(trained_parameters(self.captured, graph.index), found.accumulate_ns, strict=True)),
            Origin(plan_only=self.captured.program.plan_only, autocast=self.options.autocast),
            shards,
        )

    def _at_each_size(self, measure: Callable[[int], Found]) -> list[Found]:
        """Measure every size; one that does not fit the device, and all above it, are left out from then on."""
        found: list[Found] = []
        for size in self.sizes:
            try:
                found.append(measure(size))
                continue
            except torch.OutOfMemoryError:
                self.progress.say(f"micro-batch size {size} does not fit the device's memory; leaving it out")
            # after the handler: inside it the error still holds the failed step's frames, and they its tensors
            self.captured.model.module.zero_grad(set_to_none=True)
            drop_unreachable(self.device)
            break
        if not found:
            raise InvalidInput(
                f"{self.options.model}: a micro-batch of {self.sizes[0]} does not fit the device's memory; "
                "give smaller --microbatch-sizes"
            )
        self.sizes = self.sizes[: len(found)]
        return found

    def _kept(self, name: str, measure: Callable[[int], Found]) -> Callable[[int], Found]:
        """Return what measures a size unless the journal holds it."""
        return lambda size: self.journal.item(f"{name}/{size}", partial(measure, size))

    def _marks(self) -> list[float]:
        return list(astuple(measure_mark_cost(self.clock, self.device)))

    def _rounds(self, marks: MarkCost, size: int) -> list[Round]:
        """Measure the rounds of one size that are missing."""
        keys = [f"step/{size}/{index}" for index in range(self.options.repeats)]
        beside = [f"clock/{size}", f"plain/{size}"] if isinstance(self.clock, DeviceClock) else []
        if all(key in self.journal.items for key in [*keys, *beside]):
            return [Round.from_list(self.journal.items[key]) for key in keys]
        captured, piece = self._at(size)
        bench = Rounds(captured, piece, self.clock, marks)
        for index in range(WARM_UP_STEPS):
            bench.measure(index)
            self.progress.advance(f"micro-batch size {size}: warming up", size)
        settle(bench.whole, piece, self.clock)
        found, before = [], clock_mhz(self.device)
        for index, key in enumerate(keys):
            found.append(Round.from_list(self.journal.item(key, partial(bench.measure, index))))
            self.progress.advance(f"micro-batch size {size}: step {index + 1} of {len(keys)}", size)
        if beside:
            self.journal.item(beside[0], lambda: [before, clock_mhz(self.device)])
            self.journal.item(beside[1], bench.plain_kernel_ns)
        captured.model.module.zero_grad(set_to_none=True)
        return found

    def _at(self, size: int) -> tuple[Capture, TrainingModel]:
        captured = self.captured.at(size)
        return captured, take(captured.model, size)

    def _shares(self, size: int) -> dict[str, float]:
        return weight_shares(self.captured.at(size), size, self.clock, self.options.repeats)

    def _shards(self, times_of: Mapping[str, OperatorTimes]) -> Shards:
        degrees = self.options.tensor
        if not degrees:
            return {}
        self.progress.say("measuring linear layers and attention at their shard shapes")
        found = shard_times(
            self.captured, self.sizes, degrees, times_of, self.clock, self.options.repeats, self.journal
        )
        nothing = degrees_without_shards(found, degrees)
        if nothing:
            self.progress.say(
                f"--tensor {','.join(map(str, nothing))}: nothing measured, no linear layer and no attention divides "
                "into that many shards; choose divisors of the layers' widths"
            )
        return found

    def _working(self, size: int) -> dict[str, int]:
        captured, piece = self._at(size)
        walk = Walk(captured)
        found = working_bytes(walk, piece, observe_memory(walk, piece).saved)
        captured.model.module.zero_grad(set_to_none=True)
        return found

    def _peak_memory(self, size: int) -> int:
        """Measure the peak memory of one whole step."""
        captured, piece = self._at(size)
        found = peak_memory_bytes(extract(captured, captured.operators), piece, self.clock, self.device)
        captured.model.module.zero_grad(set_to_none=True)
        return found

    def _beside(self, unscaled: Mapping[str, list[float]]) -> dict[str, list[float]]:
        """Return what was measured of a device besides its steps, and tell where it makes their times doubtful."""
        if "kernel_ns" not in unscaled:
            return {}
        items = self.journal.items
        plain: list[float] = [items[f"plain/{size}"] for size in self.sizes]
        clocks: list[list[float]] = [items[f"clock/{size}"] for size in self.sizes]
        for i, size in enumerate(self.sizes):
            measured = unscaled["kernel_ns"][i], unscaled["unattributed_ns"][i], plain[i], *clocks[i]
            for doubt in doubts(*measured):
                self.progress.say(f"micro-batch size {size}: {doubt}")
        before, after = ([pair[i] for pair in clocks] for i in (0, 1))
        return {"plain_kernel_ns": plain, "clock_before_mhz": before, "clock_after_mhz": after}

    def _extra(self, unscaled: Mapping[str, list[float]], peaks: list[int], graph: OperatorGraph) -> dict[str, object]:
        last = self.sizes[-1]
        extra: dict[str, object] = {
            "unscaled": {**unscaled, **self._beside(unscaled)},
            "signatures": signatures(self.captured.at(last), last),
        }
        if self.device.type == "cuda":
            pairs = zip(self.sizes, peaks, strict=True)
            extra["workspace_bytes"] = [max(0, most - saved_bytes(graph, size)) for size, most in pairs]
        return extra


def versions() -> dict[str, str]:
    """Return what measured times depend on besides the options."""
    return {"torch": torch.__version__, "cuda": torch.version.cuda or ""}


def _provenance(options: Options) -> Mapping[str, object]:
    return {
        **versions(),
        **describe_settings(torch.device(options.device)),
        "threads": options.threads,
        "repeats": options.repeats,
        "seed": options.seed,
        "companions": options.companions,
    }
