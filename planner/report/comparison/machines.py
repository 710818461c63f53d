"""What differs between the machines of two plans, by keys of the cluster file.

Leaves out what follows from it.
"""

from collections.abc import Iterator, Mapping

from costmodel.machines.cluster import CLUSTER, Cluster

Pairs = Mapping[str, tuple[object, object]]
PARTS = {"device": "devices", "link": "links", "rank": "speeds"}
"""What a key of the cluster file begins with, and what it tells of."""


def unlike(old: Mapping[str, object], new: Mapping[str, object]) -> Pairs:
    """Return what two mappings say differently; None where one says nothing."""
    keys = dict.fromkeys((*old, *new))
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def flat(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves of a JSON value; entries of a list go by their names where they have them."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from flat(part, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and all(isinstance(part, dict) for part in value):
        for number, part in enumerate(value):
            yield from flat(part, f"{key}.{part.get('name', part.get('index', number))}")
    else:
        yield key, value


def unlike_parts(old: Cluster, new: Cluster) -> list[str]:
    """Return ``devices``, ``links`` or ``speeds`` where two clusters say other things of what has one name in both.

    Machines of other names, or more of the same, are what plans are compared for; a link or device of the same name
    that does something else is another assumption.
    """
    ranks = range(min(old.num_devices, new.num_devices))
    found = ["speeds"] if any(old.speed_of(rank) != new.speed_of(rank) for rank in ranks) else []
    before, after = (dict(flat(CLUSTER.write(cluster))) for cluster in (old, new))
    for key in before.keys() & after.keys():
        part, *_, leaf = key.split(".")
        if part in ("device", "link") and leaf != "group" and before[key] != after[key]:
            found.append(PARTS[part])
    return sorted(set(found))
