"""What an action of a stage is made of: kinds of work on the device, what is sent, what the host takes.

A fit of constants moves each by itself (`planner.measured.terms`). Leaves out when a step ends.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from costmodel.machines.cluster import Cluster
from costmodel.model.launches import Times
from costmodel.stages.strategies.build import Build
from costmodel.stages.strategies.groups import Ranks, StageGroups
from costmodel.stages.strategies.kinds import term_of
from costmodel.stages.strategies.stage_sharding import StageSharding

DEVICE_TERMS = ("matmul", "grouped", "attention", "memory")
"""Kinds of work on the device; products of experts in one kernel are grouped."""
SENT_TERMS = ("scaleup", "network")
"""Links on which is sent."""
GROUP_OF = {
    "dispatch": "expert", "combine": "expert", "to experts": "expert_tensor", "from experts": "expert_tensor",
    "ring": "context",
}  # fmt: skip
"""The group that sends, by the first words of what is sent; the others are sent among tensor-parallel ranks."""

Pair = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TimeTerms:
    """Terms of a forward, and of a backward with what runs again, ns.

    Attributes
    ----------
    device, sent : pair of tuple of int
        By `DEVICE_TERMS`, and by `SENT_TERMS`: exposed.
    host : pair of int
        What the host takes.
    """

    device: Pair
    sent: Pair
    host: tuple[int, int]


def terms_of_stage(
    sharding: StageSharding, build: Build, times: Callable[[int], Times], added_ns: int, copies_ns: tuple[int, int]
) -> TimeTerms:
    """Return the terms of a stage.

    Parameters
    ----------
    times : function
        What each operator takes on the device.
    added_ns : int
        Of adding up gradients.
    copies_ns : (int, int)
        By what forward and backward grow through what copies of the stage send.
    """
    vectors, operators, graph = sharding.vectors, sharding.operators, build.model.profile.graph.operators
    again = vectors.recomputed.rows
    forward, backward = dict.fromkeys(DEVICE_TERMS, 0), dict.fromkeys(DEVICE_TERMS, 0)
    backward["memory"] += added_ns
    for i in operators:
        term, (there, inputs, weights) = term_of(graph[i]), times(i)
        forward[term] += there
        backward[term] += (inputs + weights) * graph[i].trainable + again[i].get(("own", i), 0)
    groups, cluster = sharding.groups, build.cluster
    there_ns, back_ns, again_ns = (
        _sent([row.rows[i] for i in operators], groups, cluster)
        for row in (vectors.times.forward, vectors.times.backward_input, vectors.recomputed)
    )
    copies = dict(zip(("forward", "backward"), copies_ns, strict=True))
    on = _link(groups.replicas, cluster)
    sent = (
        tuple(there_ns[link] + copies["forward"] * (link == on) for link in SENT_TERMS),
        tuple(back_ns[link] + again_ns[link] + copies["backward"] * (link == on) for link in SENT_TERMS),
    )
    return TimeTerms((tuple(forward.values()), tuple(backward.values())), sent, sharding.host_ns)


def _sent(rows: Iterable[Mapping[object, int]], groups: StageGroups, cluster: Cluster) -> dict[str, int]:
    """Return what is sent on each kind of link inside a stage; what several operators share counts once."""
    once: dict[object, int] = {}
    for row in rows:
        once |= row
    found = dict.fromkeys(SENT_TERMS, 0)
    for key, ns in once.items():
        word = key[0] if isinstance(key, tuple) else ""
        if word != "own":
            found[_link(getattr(groups, GROUP_OF.get(word, "tensor")), cluster)] += ns
    return found


def _link(group: Ranks, cluster: Cluster) -> str:
    """Return on which kind of link a group of ranks sends: the slowest that joins some of them."""
    inner = cluster.groups[0].group
    return SENT_TERMS[bool(inner and any(rank // inner != group[0] // inner for rank in group))]
