"""NCCL's ring, tree, switch, PAT and pairwise exchange over levels of links, as lines of time by size, one a protocol.

Source: NVIDIA/nccl ``src/graph/tuning.cc`` (latencies of the catalogue, shares of the bandwidth below). A link's given
latency is one small message's; NCCL's constants are scaled by it against theirs, so that they only say how it splits
into the launch and the hop, and what the protocols differ by. Gloo (devices of type ``cpu``) runs rings alone, whose
every step is a message. Leaves out NCCL's limits by channel and those of LL between hosts, felt at middle sizes.
"""

from costmodel.machines import catalogue
from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives.levels import Level
from costmodel.machines.collectives.price import Line

RING_SHARE = {"ll_us": 0.25, "ll128_us": 0.92, "simple_us": 1.0}
TREE_SHARE = {"ll_us": 0.92 / 3.8, "ll128_us": 0.92 * 7 / 9, "simple_us": 0.92}
"""Share of the link's bandwidth that carries data, by protocol."""
SWITCH_CHANNELS = 5 / 6
"""Of a link that is left for data where the switch sums (``tuning.cc`` until 2.25, NVLS and NVLSTree)."""
FEWEST_SWITCHED = 3
"""Devices from which NCCL sums in the switch (``nvls.cc``)."""
PAT_SHARE, PAT_RANK_US = 0.75, 2.8
"""Share of the link's bandwidth, and what each rank adds to the latency (``tuning.cc``)."""


def ring_lines(cluster: Cluster, levels: tuple[Level, ...], num_ranks: int, rounds: int) -> tuple[Line, ...]:
    """Return the lines of `rounds` rounds of a ring: 2 of an all-reduce, 1 of an all-gather or reduce-scatter.

    The ring passes each unit of a level once, all its devices side by side; the slowest level sets its rate.
    """
    sent = rounds * (num_ranks - 1) / num_ranks / min(level.unit_gbs for level in levels)
    steps = tuple(rounds * level.num_hops for level in levels)
    if is_gloo(cluster):
        return (Line(_message_ns(levels, steps), sent),)
    return tuple(
        Line(_latency_ns(levels, steps, "ring", protocol), sent / RING_SHARE[protocol])
        for protocol in _protocols(levels)
    )


def tree_lines(levels: tuple[Level, ...]) -> tuple[Line, ...]:
    """Return the lines of an all-reduce up and down a tree: a chain within a scale-up domain, binary between hosts."""
    sent = 2 / min(level.unit_gbs for level in levels)
    steps = tuple(2 * _depth(level) for level in levels)
    return tuple(
        Line(_latency_ns(levels, steps, "tree", protocol), sent / TREE_SHARE[protocol])
        for protocol in _protocols(levels)
    )


def switch_lines(cluster: Cluster, levels: tuple[Level, ...], ranks: tuple[int, ...]) -> tuple[Line, ...]:
    """Return the line of an all-reduce whose switches sum and send out (NVLS), none where they cannot.

    Each device sends its buffer to the switch and gets the sum back at once; hosts exchange them up and down a tree
    (NVLSTree), of which two hosts need one half.
    """
    names = {cluster.device_of(rank).catalogue for rank in ranks}
    share = min(catalogue.device(name).switch_share if name else 0.0 for name in names)
    inner, outer = levels[0], levels[1:]
    if not share or inner.kind != "nvlink" or inner.fanout < FEWEST_SWITCHED or len(outer) > 1:
        return ()
    sent = [1 / (inner.unit_gbs * share * SWITCH_CHANNELS)]
    sent += [(1 if level.fanout == 2 else 2) / level.unit_gbs for level in outer]
    steps = (1, *(2 * _depth(level) for level in outer))
    return (Line(_latency_ns(levels, steps, "switch", "simple_us"), max(sent)),)


def pat_lines(levels: tuple[Level, ...], num_ranks: int) -> tuple[Line, ...]:
    """Return the line of an all-gather or reduce-scatter by parallel aggregated trees: of ranks on hosts of their own.

    Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025.
    """
    if len(levels) > 1 or levels[0].kind != "network":
        return ()
    (level,) = levels
    sent = (num_ranks - 1) / num_ranks / level.unit_gbs / PAT_SHARE
    each_ns = 1000 * num_ranks * PAT_RANK_US * _scale(level)
    return (Line(_latency_ns(levels, (_depth(level),), "pat", "simple_us") + each_ns, sent),)


def exchange_lines(cluster: Cluster, levels: tuple[Level, ...], num_ranks: int) -> tuple[Line, ...]:
    """Return the lines of each rank's sending a part of its buffer to each peer, over all levels at once."""
    sent = max(level.peers / level.rank_gbs for level in levels) / num_ranks
    steps = tuple(level.peers for level in levels)
    if is_gloo(cluster):
        return (Line(_message_ns(levels, steps), sent),)
    return tuple(
        Line(_latency_ns(levels, steps, "ring", protocol), sent / RING_SHARE[protocol])
        for protocol in ("ll_us", "simple_us")
    )


def is_gloo(cluster: Cluster) -> bool:
    """Whether the ranks cannot use NCCL."""
    return any(device.type == "cpu" for device in cluster.devices)


def _message_ns(levels: tuple[Level, ...], steps: tuple[int, ...]) -> float:
    return sum(level.link.latency_ns * count for level, count in zip(levels, steps, strict=True))


def _latency_ns(levels: tuple[Level, ...], steps: tuple[int, ...], algorithm: str, protocol: str) -> float:
    """Launch, scaled by the slowest link's latency, and the steps over each level's link."""
    known = catalogue.latencies()
    launch = getattr(known["launch", algorithm], protocol) * max(_scale(level) for level in levels)
    hops = sum(
        count * getattr(known[level.kind, algorithm], protocol) * _scale(level)
        for level, count in zip(levels, steps, strict=True)
    )
    return 1000 * float(launch + hops)


def _scale(level: Level) -> float:
    """Given latency of a small message over NCCL's own: launch and one hop, protocol LL."""
    known = catalogue.latencies()
    return level.link.latency_ns / 1000 / (known["launch", "ring"].ll_us + known[level.kind, "ring"].ll_us)


def _depth(level: Level) -> int:
    """Return the steps from the leaves to the root: ceil(log2) between hosts."""
    return (level.fanout - 1).bit_length() if level.kind == "network" else level.fanout - 1


def _protocols(levels: tuple[Level, ...]) -> tuple[str, ...]:
    """NCCL runs LL128 over NVLink and the network alone."""
    return tuple(name for name in RING_SHARE if name != "ll128_us" or all(level.kind != "pcie" for level in levels))
