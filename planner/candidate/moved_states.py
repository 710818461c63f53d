"""What moves when a job goes on under another plan: parameters and optimizer states that ranks do not hold yet.

A rank takes what it lacks from the nearest device that held it and is still there; what the lost hosts alone held
comes from the checkpoint, over the outermost link. All devices send and receive at once, each at its share of the
links. Hosts are lost from the end. Leaves out gradients, which a new step makes, the reading of files, and padding of
shards; ZeRO-1 counts as equal shares of each parameter, where the executor deals whole ones.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from math import prod

from costmodel.machines.cluster import Cluster
from costmodel.model.graph import Parameter
from costmodel.stages.strategies.division import Degrees, is_expert, parameter_parts
from costmodel.stages.strategies.states import parameter_bytes
from planner.plan import Plan, PlanStage
from planner.plan.book import StateTransfer
from planner.question.problem import Problem

Share = tuple[Fraction, Fraction]
"""From where to where in a parameter, both between 0 and 1."""
Group = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], bool]
"""Parameters alike: (stage, parts) before and afterwards, and whether they are experts'."""
PARAMETERS, STATES = 3, 1
"""The stages of ZeRO from which replicas divide parameters and optimizer states."""


def state_transfer(problem: Problem, before: Plan, after: Plan) -> StateTransfer:
    """Return what moves between two plans of one problem on more and on fewer hosts.

    Parameters
    ----------
    problem : Problem
        Whose model and training both plans are of, on either of the clusters.
    """
    return _Transfer(problem, before, after).total()


class _Transfer:
    """All that moves, by device that sends (None: the checkpoint) and device that receives."""

    def __init__(self, problem: Problem, before: Plan, after: Plan) -> None:
        self.problem, self.before, self.after = problem, before, after
        whole = max((before.cluster, after.cluster), key=_num_devices)
        self.cluster = replace(whole, order=(), speeds=())
        self.survivors = range(_num_devices(after.cluster))

    def total(self) -> StateTransfer:
        """Return bytes of all devices, and seconds of the one that takes longest."""
        moved = self._moved()
        seconds: dict[tuple[str, int], float] = defaultdict(float)
        for (source, target), amount in moved.items():
            link = self.cluster.groups[-1] if source is None else self.cluster.link_between(source, target)
            group = self.cluster.measured(link)
            seconds["receives", target] += group.latency_ns / 1e9 + amount / self.cluster.flow_gbs(target, group) / 1e9
            if source is not None:
                seconds["sends", source] += amount / self.cluster.flow_gbs(source, group) / 1e9
        return StateTransfer(sum(moved.values()), max(seconds.values(), default=0.0))

    def _moved(self) -> dict[tuple[int | None, int], int]:
        moved: dict[tuple[int | None, int], Fraction] = defaultdict(Fraction)
        for (held, needed, expert), sizes in self._groups.items():
            for zero, size in zip((PARAMETERS, STATES), sizes, strict=True):
                if size:
                    holders = _Holders(_shares(self.before, held, expert, zero))
                    for device, share in _shares(self.after, needed, expert, zero):
                        for low, high in _without(share, holders.of(device)):
                            for source, length in self._sources(holders, device, low, high):
                                moved[source, device] += length * size
                        holders.now_holds(device, share)
        return {ends: round(amount) for ends, amount in moved.items()}

    def _sources(
        self, holders: "_Holders", device: int, low: Fraction, high: Fraction
    ) -> Iterator[tuple[int | None, Fraction]]:
        """Yield who sends a device each piece of what it lacks, and how much of a parameter that is."""
        for start, stop, devices in holders.pieces(low, high):
            there = [each for each in devices if each in self.survivors]
            yield min(there, key=lambda each: self._distance(each, device), default=None), stop - start

    def _distance(self, source: int, target: int) -> tuple[int, int]:
        return self.cluster.groups.index(self.cluster.link_between(source, target)), abs(source - target)

    @cached_property
    def _groups(self) -> Mapping[Group, tuple[int, int]]:
        """Bytes of parameters and of optimizer states, of all parameters that plans treat alike."""
        found: dict[Group, tuple[int, int]] = defaultdict(lambda: (0, 0))
        graph = self.problem.profile.graph
        readers: dict[str, list[str]] = defaultdict(list)
        for operator in graph.operators:
            for name in operator.parameters:
                readers[name].append(operator.name)
        stages = [_stages_by_operator(plan) for plan in (self.before, self.after)]
        for name, operators in readers.items():
            parameter = graph.parameter_index[name]
            owners = [graph.operators[graph.index[each]] for each in operators]
            before, after = (
                tuple(
                    (stage, min(parameter_parts(parameter, owner, _degrees(plan.stages[stage])) for owner in owners))
                    for stage in sorted({of[each] for each in operators})
                )
                for plan, of in zip((self.before, self.after), stages, strict=True)
            )
            group = before, after, any(map(is_expert, owners))
            weights, states = found[group]
            own = self._sizes(parameter)
            found[group] = weights + own[0], states + own[1]
        return found

    def _sizes(self, parameter: Parameter) -> tuple[int, int]:
        training = self.problem.training
        size = parameter_bytes(parameter, training)
        if not parameter.trainable:
            return size, 0
        values = prod(parameter.shape)
        kept = (values if training.precision else size) * training.state_width(1)
        return size, kept + (values * training.master_width if training.mixed else 0)


class _Holders:
    """Who holds which part of parameters that are alike."""

    def __init__(self, shares: Iterable[tuple[int, Share]]) -> None:
        self._by_device: dict[int, list[Share]] = defaultdict(list)
        by_share: dict[Share, list[int]] = defaultdict(list)
        for device, share in shares:
            self._by_device[device].append(share)
            by_share[share].append(device)
        self._bounds = sorted({bound for share in by_share for bound in share})
        self._devices: list[list[int]] = [[] for _ in self._bounds]
        for (low, high), devices in by_share.items():
            for piece in range(bisect_left(self._bounds, low), bisect_left(self._bounds, high)):
                self._devices[piece] += devices

    def of(self, device: int) -> Sequence[Share]:
        """Return what a device holds."""
        return self._by_device.get(device, ())

    def now_holds(self, device: int, share: Share) -> None:
        """Note that a device has received a share, which it needs once."""
        self._by_device[device].append(share)

    def pieces(self, low: Fraction, high: Fraction) -> Iterator[tuple[Fraction, Fraction, list[int]]]:
        """Yield the pieces of a part, each held whole by the same devices."""
        first, last = bisect_right(self._bounds, low) - 1, bisect_left(self._bounds, high)
        for piece in range(first, last):
            start, stop = max(low, self._bounds[piece]), min(high, self._bounds[piece + 1])
            yield start, stop, self._devices[piece]


def _shares(plan: Plan, stages: Sequence[tuple[int, int]], expert: bool, zero: int) -> Iterator[tuple[int, Share]]:
    """Yield which part each device holds of parameters that stages divide into parts, and ZeRO further."""
    for index, parts in stages:
        config = plan.stages[index].config
        spread = config.expert if expert else 1
        for number, rank in enumerate(plan.stages[index].ranks):
            copy, lane = divmod(number, config.tensor)
            part = ((copy % spread) * config.tensor + lane) % parts
            sharers = config.num_sharers // spread if config.zero >= zero else 1
            place = part * sharers + copy % config.num_sharers // spread % sharers
            device = plan.cluster.order[rank] if plan.cluster.order else rank
            yield device, (Fraction(place, parts * sharers), Fraction(place + 1, parts * sharers))


def _without(share: Share, held: Sequence[Share]) -> list[Share]:
    """Return the parts of a share that are not held."""
    left = [share]
    for low, high in held:
        left = [(start, stop) for a, b in left for start, stop in ((a, min(b, low)), (max(a, high), b)) if start < stop]
    return left


def _stages_by_operator(plan: Plan) -> dict[str, int]:
    return {name: i for i, stage in enumerate(plan.stages) for name in stage.operators}


def _degrees(stage: PlanStage) -> Degrees:
    return Degrees.of(stage.config, sequence_parallel=False)


def _num_devices(cluster: Cluster) -> int:
    """Return how many devices the hosts hold, of which a plan may leave out some."""
    return sum(host.count * host.devices for host in cluster.hosts)
