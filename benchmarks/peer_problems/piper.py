"""Piper's problem: a chain of stages with replicas, tensor degree and recompute; the slowest stage as fast as can be.

Tarnawski et al., NeurIPS 2021. A stage of nodes S with d replicas and tensor degree t takes, for each sample,
(sum of p + 2 sum of (c + sync) / bw over the edges that leave or enter S) / d + 4 (d - 1) sum of w / (d N bw), where
each node has one of its variants, and holds sum of (A y + B) bytes, with y = ceil(d of this and later stages / d).
Solved exactly for a time T by dynamic programming from the last stage on, over downsets and, for each number of devices
used, the fewest replicas so far: both only ever get in the way. T is bisected between times that stages take. Leaves
out graphs with very many downsets.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from benchmarks.peer_problems.answer import HEURISTIC, INFEASIBLE, PeerAnswer, status_of
from benchmarks.peer_problems.readers.piper import Variant, VariantInstance
from planner.search.budget import Deadline
from planner.search.published.downsets import downsets, nodes_of

CLOSE = 1e-9
"""Relative width at which the bisection ends."""
PATIENCE = 2
"""Times in a row that nothing is found after which a proof of the best is tried: it is a time that some stage takes."""
GIB = 2**30
CLOSE_MEMORY, MOST_MEMORY = 1.01, 1024
"""Where nothing fits: how closely the memory that does is told, and up to how many times the memory given."""
MOST_POINTS = 20_000
"""Pairs of time and bytes of a stage's variants that are kept."""


@dataclass(frozen=True, slots=True)
class PiperSetting:
    """Devices, bytes of each, bytes a second, micro-batches of a batch, and what stages may use."""

    num_devices: int
    memory_bytes: float
    bandwidth: float
    num_microbatches: int
    data_parallel: bool = True
    tensor_parallel: bool = True


class _Stopped(Exception):
    """More choices than can be gone through, or no time left: nothing follows for the time that was tried."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How a stage runs: replicas, tensor degree, time for each sample, the variant of each node."""

    replicas: int
    tensor: int
    time_s: float
    variants: tuple[str, ...]


class _Stage:
    """The nodes of a stage with one tensor degree: what it takes at least, by micro-batches in flight."""

    def __init__(self, instance: VariantInstance, setting: PiperSetting, nodes: tuple[int, ...], tensor: int) -> None:
        self._setting, self._nodes, self.tensor = setting, nodes, tensor
        self._variants = [instance.variants[node][tensor] for node in nodes]
        self._inside, self._instance = set(nodes), instance
        self._best: dict[int, tuple[float, tuple[str, ...]] | None] = {}
        weights = math.fsum(row[0].parameter_bytes for row in self._variants)
        self._reduce_s = 4 * weights / (setting.num_microbatches * setting.bandwidth)
        self.least_s = math.fsum(min(self._time(i, v) for v in row) for i, row in enumerate(self._variants))

    def _time(self, place: int, variant: Variant) -> float:
        """Return a node's own time with what crosses the stage's border at it."""
        node, crossing = self._nodes[place], 0.0
        for source, target, size in self._edges[node]:
            if target == node and source not in self._inside:
                crossing += size + variant.sync_in.get(source, 0.0)
            elif source == node and target not in self._inside:
                crossing += size + variant.sync_out.get(target, 0.0)
        return variant.time_s + 2 * crossing / self._setting.bandwidth

    @cached_property
    def _edges(self) -> Mapping[int, list[tuple[int, int, float]]]:
        found: dict[int, list[tuple[int, int, float]]] = {node: [] for node in self._nodes}
        for edge in self._instance.edges:
            for end in {edge[0], edge[1]} & self._inside:
                found[end].append(edge)
        return found

    def reduce_s(self, replicas: int) -> float:
        """Return what so many replicas take for each sample to sum their gradients."""
        return self._reduce_s * (replicas - 1) / replicas

    def per_sample_s(self, own_s: float, replicas: int) -> float:
        """Return what a stage with so many replicas takes for each sample."""
        return own_s / replicas + self.reduce_s(replicas)

    def best(self, in_flight: int) -> tuple[float, tuple[str, ...]] | None:
        """Return the least own time of variants that fit with so many micro-batches in flight; None where none do."""
        if in_flight not in self._best:
            self._best[in_flight] = self._chosen(in_flight)
        return self._best[in_flight]

    def _chosen(self, in_flight: int) -> tuple[float, tuple[str, ...]] | None:
        """Choose a variant for each node: all that no other choice beats in both time and bytes are carried along."""
        limit = self._setting.memory_bytes
        points: list[tuple[float, float, tuple[str, ...]]] = [(0.0, 0.0, ())]
        for place, row in enumerate(self._variants):
            more = [(self._time(place, v), v.per_microbatch_bytes * in_flight + v.static_bytes, v.name) for v in row]
            every = sorted((b + held, s + own, (*names, name)) for s, b, names in points for own, held, name in more)
            points, least = [], math.inf
            for held, own, names in every:
                if held <= limit and own < least:
                    points.append((own, held, names))
                    least = own
            if len(points) > MOST_POINTS:
                raise _Stopped
            if not points:
                break
        if not points or len(points[-1][2]) < len(self._nodes):
            return None
        return points[-1][0], points[-1][2]


class _Search:
    """Chains of stages under a time limit for each sample."""

    def __init__(self, instance: VariantInstance, setting: PiperSetting, sets: list[int], limits: Deadline) -> None:
        self.instance, self.setting, self.sets, self.limits = instance, setting, sets, limits
        most = setting.num_devices if setting.data_parallel else 1
        self.replicas = [d for d in range(1, most + 1) if setting.num_microbatches % d == 0]
        self._stages: dict[int, list[_Stage]] = {}
        self._below = {mask: [s for s in sets if s != mask and not s & ~mask] for mask in sets}

    def _ways(self, mask: int) -> list[_Stage]:
        """Return the stages of these nodes, one for each tensor degree that all of them have."""
        if mask not in self._stages:
            nodes = tuple(nodes_of(mask))
            common = set.intersection(*(set(self.instance.variants[node]) for node in nodes))
            allowed = common if self.setting.tensor_parallel else common & {1}
            self._stages[mask] = [_Stage(self.instance, self.setting, nodes, tensor) for tensor in sorted(allowed)]
        return self._stages[mask]

    def chain(self, most_s: float) -> list[tuple[int, _Way]] | None:
        """Return stages, the first first, of which none takes longer for each sample; None where there are none."""
        whole = self.sets[-1]
        reached: dict[int, dict[tuple[int, int], tuple[int, tuple[int, int], _Way] | None]] = {whole: {(0, 0): None}}
        for mask in reversed(self.sets):
            if self.limits.expired:
                raise _Stopped
            points = _undominated(reached.get(mask, {}))
            if not mask:
                return self._back(reached, points) if points else None
            for rest in self._below[mask] if points else ():
                for stage in self._ways(mask & ~rest):
                    enough = self._enough(stage, most_s)
                    for point in points if enough else ():
                        way = self._way(stage, enough, point)
                        if way:
                            after = point[0] + way.replicas * way.tensor, point[1] + way.replicas
                            reached.setdefault(rest, {}).setdefault(after, (mask, point, way))
        return None

    def _enough(self, stage: _Stage, most_s: float) -> list[tuple[int, float]]:
        """Return numbers of replicas that are enough for the least time, each with the own time that it allows."""
        every = ((replicas, (most_s - stage.reduce_s(replicas)) * replicas) for replicas in self.replicas)
        return [(replicas, own_s) for replicas, own_s in every if own_s >= stage.least_s]

    def _way(self, stage: _Stage, enough: Iterable[tuple[int, float]], point: tuple[int, int]) -> _Way | None:
        """Return how a stage runs with the fewest replicas: more of them only take devices from those before it."""
        left = self.setting.num_devices - point[0]
        for replicas, own_s in enough:
            if replicas * stage.tensor > left:
                return None
            found = stage.best(-(-(point[1] + replicas) // replicas))
            if found and found[0] <= own_s:
                return _Way(replicas, stage.tensor, stage.per_sample_s(found[0], replicas), found[1])
        return None

    def _back(
        self,
        reached: Mapping[int, Mapping[tuple[int, int], tuple[int, tuple[int, int], _Way] | None]],
        points: list[tuple[int, int]],
    ) -> list[tuple[int, _Way]]:
        rows, mask, point = [], 0, points[0]
        step = reached[mask][point]
        while step:
            after, before, way = step
            rows.append((after & ~mask, way))
            mask, point = after, before
            step = reached[mask][point]
        return rows


def _undominated(points: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs of devices and replicas that no other is at most equal to in both."""
    found: list[tuple[int, int]] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def solve_piper(instance: VariantInstance, setting: PiperSetting, seconds: float) -> PeerAnswer:
    """Minimise the time for each sample, in s."""
    limits = Deadline(seconds)
    sets = downsets(len(instance.names), [(source, target) for source, target, _ in instance.edges])
    if sets is None:
        return PeerAnswer(None, 0.0, HEURISTIC, (), "the graph has too many downsets to be searched completely")
    search = _Search(instance, setting, sets, limits)
    try:
        best = search.chain(math.inf)
    except _Stopped:
        return PeerAnswer(None, 0.0, HEURISTIC, (), "not all stages could be gone through")
    if best is None:
        return PeerAnswer(None, 0.0, INFEASIBLE, (), _why(search) + _way_out(search))
    low, high, misses, interrupted = 0.0, max(way.time_s for _, way in best), 0, False
    while low < high * (1 - CLOSE):
        middle = (low + high) / 2 if misses < PATIENCE else high * (1 - CLOSE)
        try:
            found = search.chain(middle)
        except (KeyboardInterrupt, _Stopped) as ended:  # the best so far is kept
            interrupted = isinstance(ended, KeyboardInterrupt)
            break
        if found:
            best, high, misses = found, max(way.time_s for _, way in found), 0
        else:
            low, misses = middle, misses + 1
    bound = high if low >= high * (1 - CLOSE) else low
    rows = []
    for mask, way in best:
        names = [instance.names[node] for node in nodes_of(mask)]
        rows.append({"nodes": names, "replicas": way.replicas, "tensor": way.tensor, "time_s": way.time_s,
                     "variants": list(way.variants)})  # fmt: skip
    return PeerAnswer(high, bound, status_of(high, bound), tuple(rows), interrupted=interrupted)


def _why(search: _Search) -> str:
    """Say that memory does not do; one node alone may need more than a device has."""
    instance, setting = search.instance, search.setting
    for name, degrees in zip(instance.names, instance.variants, strict=True):
        allowed = [row for degree, row in degrees.items() if setting.tensor_parallel or degree == 1]
        least = min((v.per_microbatch_bytes + v.static_bytes for row in allowed for v in row), default=math.inf)
        if least > setting.memory_bytes:
            return f"{name} alone needs {least:.0f} bytes, a device has {setting.memory_bytes:.0f}"
    return f"no chain of stages on {setting.num_devices} devices fits into {setting.memory_bytes:.0f} bytes each"


def _way_out(search: _Search) -> str:
    """Say what would do, tried by solving again: memory, to a hundredth, and devices."""
    setting = search.setting

    def fits(changed: PiperSetting) -> bool:
        return _Search(search.instance, changed, search.sets, search.limits).chain(math.inf) is not None

    ways = []
    try:
        low, high = setting.memory_bytes, 2 * setting.memory_bytes
        while high < MOST_MEMORY * setting.memory_bytes and not fits(replace(setting, memory_bytes=high)):
            low, high = high, 2 * high
        while high > low * CLOSE_MEMORY and high < MOST_MEMORY * setting.memory_bytes:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fits(replace(setting, memory_bytes=middle)) else (middle, high)
        enough = math.ceil(high / GIB * 1000) / 1000
        if fits(replace(setting, memory_bytes=enough * GIB)):
            ways.append(f"--memory {enough:g} does")
        counts = [setting.num_devices * times for times in (2, 4, 8)]
        ways += [f"--devices {count} does" for count in counts if fits(replace(setting, num_devices=count))][:1]
    except _Stopped:
        pass
    return "".join(f"; {way}" for way in ways)
