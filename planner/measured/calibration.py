"""From a measured step of a plan to a profile that would have predicted it.

Of each stage F moves its operators' forward, and B (or I and W together) their backward. Medians of the actions count,
the first on each rank left out where others are enough, and a ratio that rests on few or scattered actions moves part
of the way (`Ratio.moves`). OPT moves the optimizer's step; messages move the links of the profile, as far as these
priced them. Leaves out what a step does not tell apart: operators within a stage, other micro-batch sizes (all move
alike), the cost of a split backward (`whole.split`), sums of gradients, Python between two actions.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from statistics import median, stdev

from costmodel.model.calibrated import Ratios, calibrated
from costmodel.model.origin import ROOFLINE
from costmodel.model.profile import Profile
from planner.candidate.make import plan_digest
from planner.candidate.reprice import repriced
from planner.plan import Plan
from planner.plan.replay import plan_schedule, replay
from simulator.actions import Kind
from simulator.measured_times import MeasuredMessage, durations_ns, messages
from simulator.timeline import Span, Timeline

BACKWARD = (Kind.B, Kind.I, Kind.W)
PRIOR = 0.1
"""By how much a profile is off, relative, where nothing more is seen: a ratio further from 1 speaks for itself."""
ASSUMED = 0.1
"""Relative scatter of actions where too few were measured to see it."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median against that of a mean (normal distribution)."""
FEW = 3
"""Actions from which their own scatter is seen, and messages from which links move."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of measured to planned over a number of actions; `scatter` is their relative standard deviation."""

    measured: float
    count: int
    scatter: float

    @property
    def moves(self) -> float:
        """By what times are multiplied: the ratio to the power of how far it can be trusted, 1 without scatter."""
        error = MEDIAN_ERROR * self.scatter / self.count**0.5
        return float(self.measured ** (1 / (1 + (error / max(PRIOR, abs(log(self.measured)))) ** 2)))


@dataclass(frozen=True)
class MovedProfile:
    """A plan, what a run of it took, and the profile that it is to move.

    Attributes
    ----------
    plan : Plan
    measured : Timeline
        Of the executor, with the plan's actions.
    profile : Profile
        Of the plan's model; need not be the one that the plan was made with.
    """

    plan: Plan
    measured: Timeline
    profile: Profile

    @cached_property
    def before(self) -> Plan:
        """The plan at the prices of the profile as it is."""
        return repriced(self.plan, self.profile)

    @cached_property
    def counted(self) -> Profile:
        """The profile as one that was measured, which is what moves: a run holds its host's calls and its kernels."""
        origin = self.profile.origin
        return replace(
            self.profile,
            origin=replace(origin, estimated=tuple(reason for reason in origin.estimated if reason != ROOFLINE)),
        )

    @cached_property
    def _planned(self) -> Mapping[tuple[int, Kind], list[int]]:
        """What actions take at its prices without host time of messages: what spans of the run are held against."""
        return durations_ns(replay(repriced(self.plan, self.counted, host_time=False)))

    @cached_property
    def bare(self) -> Timeline:
        """The predicted timeline of the profile as it is, without host time of messages in actions."""
        return replay(repriced(self.plan, self.profile, host_time=False))

    @cached_property
    def after(self) -> Plan:
        """The plan at the prices of the profile that comes out."""
        return repriced(self.plan, self.moved)

    @cached_property
    def bare_after(self) -> Timeline:
        """Its predicted timeline without host time of messages."""
        return replay(repriced(self.plan, self.moved, host_time=False))

    @cached_property
    def ratios(self) -> Mapping[tuple[int, str], Ratio]:
        """Measured against planned for each stage's ``forward`` and ``backward``."""
        planned, took = self._planned, durations_ns(self.measured)
        found = {}
        for stage in range(len(self.plan.stages)):
            for name, kinds in (("forward", (Kind.F,)), ("backward", BACKWARD)):
                keys = [(stage, kind) for kind in kinds if planned.get((stage, kind)) and took.get((stage, kind))]
                before_ns = sum(median(planned[key]) for key in keys)
                if before_ns:
                    after_ns = sum(median(took[key]) for key in keys)
                    scatters = [_scatter(took[key]) for key in keys]
                    count = min(len(took[key]) for key in keys)
                    found[stage, name] = Ratio(max(1, after_ns) / before_ns, count, max(scatters))
        return found

    @cached_property
    def optimizer(self) -> Ratio | None:
        """Of the optimizer's step, all stages together; None where neither plan nor profile has one."""
        planned, took = self._planned, durations_ns(self.measured)
        keys = [key for key in planned if key[1] is Kind.OPT and key in took]
        before_ns = sum(sum(planned[key]) for key in keys)
        if not before_ns or not self.profile.whole.optimizer_ns:
            return None
        each = [measured for key in keys for measured in took[key]]
        return Ratio(sum(each) / before_ns, len(each), ASSUMED)

    @cached_property
    def links(self) -> Mapping[str, Ratio]:
        """Of the classes ``p2p_host`` and ``p2p`` of the profile's links, as far as the run's messages tell."""
        links = self.profile.links
        if links is None or self.before.cluster.links != links:
            return {}
        rows = {"p2p_host": list(self._host_ratios()), "p2p": list(self._transfer_ratios())}
        return {
            name: Ratio(median(row), len(row), stdev(row) / median(row))
            for name, row in rows.items()
            if name in links.classes and len(row) >= FEW and median(row) > 0
        }

    @cached_property
    def _messages(self) -> list[tuple[MeasuredMessage, int, int]]:
        """Messages between ranks, what each of their ends was to take of its rank, and its way, ns.

        None where ranks work in lockstep: each sends its part, under one name.
        """
        if any(len(block) > 1 for block in self.plan.blocks):
            return []
        edges = {(edge.source, edge.target): edge for edge in self.before.edges}
        graph, machines = plan_schedule(self.plan).graph, self.before.cluster
        found = []
        for message in messages(self.measured):
            stage, peer = message.action.stage, message.action.peer
            edge = edges[peer, stage] if (peer, stage) in edges else edges[stage, peer]
            multiples = [self.plan.stages[i].microbatch_multiple for i in (edge.source, edge.target)]
            size = edge.size_bytes * min(multiples) // multiples[0]
            first, second = (graph.rank_of(i, message.action.microbatch) for i in (stage, peer))
            found.append((message, machines.host_ns(first, second, size), edge.p2p_ns))
        return found

    def _host_ratios(self) -> Iterator[float]:
        """Yield for each end of a message what its calls took; a wait counts where the message was there before."""
        for message, host_ns, p2p_ns in self._messages:
            if host_ns:
                yield _length(message.send) / host_ns
                if message.posted and message.send.end_ns + p2p_ns <= message.wait.start_ns:
                    yield (_length(message.posted) + _length(message.wait)) / host_ns

    def _transfer_ratios(self) -> Iterator[float]:
        """Yield for each message that a rank stood still for how long it was under way, its taking left out."""
        there = [_length(m.wait) for m, _, p2p_ns in self._messages if m.send.end_ns + p2p_ns <= m.wait.start_ns]
        taking_ns = median(there) if there else 0
        for message, _, p2p_ns in self._messages:
            if p2p_ns and message.awaited:
                yield max(0.0, message.wait.end_ns - message.send.end_ns - taking_ns) / p2p_ns

    @cached_property
    def moved(self) -> Profile:
        """The profile that comes out; its origin holds the digest of what moved it, its provenance the ratios."""
        ratios_of = {}
        for index, stage in enumerate(self.plan.stages):
            forward, backward = (self._moves(index, name) for name in ("forward", "backward"))
            ratios_of.update(dict.fromkeys(stage.operators, Ratios(forward, backward)))
        optimizer = self.optimizer.moves if self.optimizer else 1.0
        found = calibrated(self.counted, ratios_of, optimizer, {name: row.moves for name, row in self.links.items()})
        told = {"plan": plan_digest(self.plan), "ratios": self.moves()}
        known = self.profile.provenance.get("calibrated", [])
        runs = [*(known if isinstance(known, list) else []), told]
        digest = hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()
        return replace(
            found,
            origin=replace(found.origin, calibration=digest),
            provenance={**self.profile.provenance, "calibrated": runs},
        )

    def _moves(self, stage: int, name: str) -> float:
        return self.ratios[stage, name].moves if (stage, name) in self.ratios else 1.0

    def moves(self) -> dict[str, object]:
        """Return by what everything is multiplied: stages, the optimizer's step, links."""
        stages = [
            {"stage": i, **{name: self._moves(i, name) for name in ("forward", "backward") if (i, name) in self.ratios}}
            for i in range(len(self.plan.stages))
        ]
        optimizer = {"optimizer": self.optimizer.moves} if self.optimizer else {}
        return {"stages": stages, **optimizer, **{name: ratio.moves for name, ratio in self.links.items()}}

    def stays(self) -> list[str]:
        """Return what the run does not identify, in words."""
        sizes = [size for size in self.profile.microbatch_sizes if size != self.plan.batch.microbatch_size]
        kinds = {kind for _, kind in durations_ns(self.measured)}
        lacking = [
            f"{name} of stage {i}"
            for i in range(len(self.plan.stages))
            for name in ("forward", "backward")
            if (i, name) not in self.ratios and (name == "forward" or self.plan.stages[i].cost.backward)
        ]
        found = [f"{', '.join(lacking)}: nothing was planned or measured"] if lacking else []
        found.append("operators within a stage: all of a stage move by one ratio, I and W keep theirs")
        if sizes:
            found.append(f"micro-batches of {', '.join(map(str, sizes))}: moved as those of the run")
        if self.profile.whole.split:
            how = "ran split" if Kind.I in kinds else "ran whole"
            found.append(f"what a split backward costs (whole.split): backwards {how}")
        if self.profile.links is None or self.before.cluster.links != self.profile.links:
            found.append("links: the plan's are not the profile's, and are not changed")
        else:
            unknown = [name for name in self.profile.links.classes if name not in self.links]
            found += [f"links: {', '.join(unknown)}: too few such messages in the run"] if unknown else []
        if self.profile.whole.optimizer_ns and not self.optimizer:
            found.append("the optimizer's step: the plan has none")
        if any(stage.config.tensor * stage.config.context > 1 or stage.config.zero > 1 for stage in self.plan.stages):
            found.append("sums and gathers within actions: they move with their stage's operators")
        return found


def _scatter(row: Sequence[int]) -> float:
    return stdev(row) / (median(row) or 1) if len(row) >= FEW else ASSUMED


def _length(span: Span) -> int:
    return span.end_ns - span.start_ns
