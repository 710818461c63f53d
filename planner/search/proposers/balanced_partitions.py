"""The cuts of a family that are looked at first: equally many layers a stage, and balanced segments of two orders.

Where links are slow, segments with lighter messages, too. Leaves out what they are worth (`balanced_sweep.py`), and
cuts that look at more than work and messages.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from costmodel.errors import UsageError
from planner.graph.atoms import Partition, numbered
from planner.search.proposers.low_traffic import low_traffic_partition
from planner.search.space.bottleneck_partition import bottleneck_partition
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem

NUM_ORDERS = 2


def balanced_partitions(prepared: PreparedProblem, cuts: FamilyPartitions, places: int) -> Iterator[Partition]:
    """Yield balanced cuts of a family into a number of places; around pinned stages where there are any."""
    if cuts.pinned.places:
        yield from _around_pins(prepared, cuts, places)
        return
    num_stages = places * cuts.family.chunks
    if num_stages == 1:
        yield (0,) * len(cuts.atoms)
        return
    layers = prepared.equal_layers(num_stages)
    if layers:
        yield layers
    for order in prepared.orders[:NUM_ORDERS]:
        for found in _balanced(cuts, places, [(atom,) for atom in order]):
            yield found
            lighter = low_traffic_partition(cuts, order, found)
            if lighter:
                yield lighter
    yield from _balanced(cuts, places, _in_layers(prepared, prepared.orders[0]))
    if cuts.family.chunks > 1:
        yield from _balanced(cuts, places, _trained(prepared, prepared.orders[0]))


def _trained(prepared: PreparedProblem, order: Sequence[int]) -> list[tuple[int, ...]]:
    """Return an order in pieces each of which has a backward, as stages that share a place must; nothing if all have.

    What is frozen goes with what is trained next, or with the last that is.
    """
    graph = prepared.problem.profile.graph
    trains = [any(graph.operators[i].trainable for i in row) for row in prepared.atoms.members]
    pieces: list[tuple[int, ...]] = []
    begun: tuple[int, ...] = ()
    for atom in order:
        begun += (atom,)
        if trains[atom]:
            pieces.append(begun)
            begun = ()
    if begun and pieces:
        pieces[-1] += begun
    return pieces if len(pieces) < len(order) else []


def _in_layers(prepared: PreparedProblem, order: Sequence[int]) -> list[tuple[int, ...]]:
    """Return an order in pieces that are whole layers; nothing where a layer does not follow itself."""
    layer_of = {atom: number for number, row in enumerate(prepared.layers) for atom in row}
    pieces = [tuple(row) for _, row in groupby(order, key=lambda atom: layer_of.get(atom, -1 - atom))]
    return pieces if len(pieces) == len({layer_of.get(row[0], -1 - row[0]) for row in pieces}) else []


def _balanced(cuts: FamilyPartitions, places: int, pieces: Sequence[tuple[int, ...]]) -> Iterator[Partition]:
    """Yield the cuts of an order of pieces whose largest stage takes least, with what closes the step and without.

    Stages that drain early have time for it.
    """
    for amounts in dict.fromkeys((cuts.shares_ns, cuts.works_ns)) if pieces else ():
        works = [sum(amounts[atom] for atom in piece) for piece in pieces]
        stages = bottleneck_partition(cuts.at_places(works, places * cuts.family.chunks))
        if stages:
            found = {atom: stage for piece, stage in zip(pieces, stages, strict=True) for atom in piece}
            yield tuple(found[atom] for atom in range(len(cuts.atoms)))


def _around_pins(prepared: PreparedProblem, cuts: FamilyPartitions, places: int) -> Iterator[Partition]:
    """Cut what pins leave free: as many pieces of an order as there may be, which end where a pinned stage stands."""
    if prepared.pinned_partition:
        yield prepared.pinned_partition
        return
    parts, left = _parts(prepared, cuts), cuts.pinned.num_free_ranks
    least = 1 + max(part for atom, part in parts.items() if atom not in cuts.pinned.places)
    if least > left:
        why = (
            f"pinned stages part what is left into at least {least} stages, and leave {left} of the "
            f"{prepared.problem.num_devices} devices for them; pin less, or give more --devices"
        )
        prepared.dropped.refuse(UsageError(why))
        return
    seldom = sorted(prepared.orders[0], key=lambda atom: (parts[atom], atom not in cuts.pinned.places))
    for order in (prepared.orders[0], seldom):
        for num_pieces in range(places - len(cuts.pinned.places), 0, -1):
            found = _in_pieces(cuts, order, num_pieces)
            if found and max(found) < cuts.num_places:
                yield found
                break


def _parts(prepared: PreparedProblem, cuts: FamilyPartitions) -> dict[int, int]:
    """Return how many stages of free atoms each atom is behind at least; pinned ones are before those of their part."""
    parts: dict[int, int] = {}
    for atom in prepared.orders[0]:
        pinned, above = atom in cuts.pinned.places, cuts.atoms.predecessors[atom]
        parts[atom] = max((parts[one] + (pinned and one not in cuts.pinned.places) for one in above), default=0)
    return parts


def _in_pieces(cuts: FamilyPartitions, order: Sequence[int], num_pieces: int) -> Partition | None:
    """Return balanced pieces of an order's free atoms, and more where pinned ones stand between; None in a cycle."""
    pinned = cuts.pinned.places
    free = [atom for atom in order if atom not in pinned]
    stages = bottleneck_partition([[cuts.shares_ns[atom] for atom in free]] * num_pieces)
    if stages is None:
        return None
    piece, groups, latest = dict(zip(free, stages, strict=True)), [0] * len(order), -1
    for place, atom in enumerate(order):
        follows = place and order[place - 1] not in pinned and piece.get(order[place - 1]) == piece.get(atom)
        latest += not follows
        groups[atom] = latest
    return numbered(cuts.atoms, groups)
