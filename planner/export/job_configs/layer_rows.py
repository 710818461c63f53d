"""How trainers cut a model's layers into stages where nobody lists them: rows of letters, as of a layout.

Leaves out the letters' grammar (`planner.graph.layout`) and models whose layers are no list.
"""

from collections.abc import Sequence

from costmodel.errors import InvalidInput
from planner.graph.layout import Rows


def with_ends(counts: Sequence[int], num_mtp: int = 0) -> Rows:
    """Return the rows of stages with these numbers of layers: the embedding first, the head last."""
    rows = ["t" * count for count in counts]
    rows[0] = f"E{rows[0]}"
    rows[-1] = f"{rows[-1]}{'m' * num_mtp}L"
    return tuple(rows)


def megatron_counts(
    num_layers: int, num_places: int, chunks: int, first: int | None, last: int | None, ends: tuple[int, int]
) -> list[int]:
    """Return the layers of each stage, as Megatron's `get_num_layers_to_build` counts them (chunk by chunk in a loop).

    Parameters
    ----------
    first, last : int, optional
        Layers of the first and the last rank of the pipeline.
    ends : (int, int)
        What the embedding and the loss count, in layers.

    Raises
    ------
    InvalidInput
        For numbers that do not divide; says which.
    """
    if (first is not None or last is not None) and any(ends):
        raise InvalidInput(
            "uneven ends, and an embedding or loss that counts as a layer: Megatron takes one of the two"
        )
    given = [count for count in (first, last) if count is not None]
    left, places = num_layers + sum(ends) - sum(given), num_places - len(given)
    if left < 0 or places < 0 or (places and left % places) or (not places and left):
        raise InvalidInput(
            f"{num_layers} layers{f' and {sum(ends)} that the ends count' if any(ends) else ''} on {num_places} places"
            + (f", of which {given} are given," if given else "")
            + " do not divide evenly"
        )
    ranks = [left // places if places else 0] * num_places
    ranks[0] = ranks[0] if first is None else first
    ranks[-1] = ranks[-1] if last is None else last
    odd = next((count for count in ranks if count % chunks), None)
    if odd is not None:
        raise InvalidInput(f"{odd} layers of a rank do not divide into {chunks} virtual stages")
    counts = [ranks[stage % num_places] // chunks for stage in range(num_places * chunks)]
    counts[0] -= ends[0]
    counts[-1] -= ends[1]
    if min(counts) < 0:
        raise InvalidInput("an end counts as a layer in a stage that has none")
    return counts


def torchtitan_counts(num_layers: int, num_stages: int, first_less: int, last_less: int) -> list[int]:
    """Return the layers of each stage, as torchtitan's `generate_llm_fqn_per_model_part` divides them.

    Raises
    ------
    InvalidInput
        For more stages than there are layers.
    """
    each, extra = divmod(num_layers + first_less + last_less, num_stages)
    counts = [each + (stage < extra) for stage in range(num_stages)]
    counts[0] -= first_less
    counts[-1] -= last_less
    if min(counts) < 0 or each == 0:
        raise InvalidInput(f"{num_layers} layers on {num_stages} stages, whose ends have fewer: too many stages")
    return counts


def uniform_bounds(num_items: int, num_parts: int) -> list[int]:
    """Return the bounds of parts of equally many items, as DeepSpeed's `partition_uniform` has them."""
    if num_items <= num_parts:
        return [min(part, num_items) for part in range(num_parts + 1)]
    each, extra = divmod(num_items, num_parts)
    return [part * each + min(part, extra) for part in range(num_parts + 1)]


def balanced_bounds(weights: Sequence[int], num_parts: int) -> list[int]:
    """Return the bounds of parts of least difference in weight, as DeepSpeed's `partition_balanced` has them."""
    count = len(weights)
    if count <= num_parts:
        return uniform_bounds(count, num_parts)
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    endless = float("inf")
    best: list[list[tuple[float, float, float, int]]] = [[(endless, endless, endless, 0)] * (num_parts + 1)]
    best[0][0] = (0, 0, endless, 0)  # cost, largest, smallest, where the last part begins
    for i in range(1, count + 1):
        row = [(endless, endless, endless, 0)] * (num_parts + 1)
        for j in range(1, min(i, num_parts) + 1):
            for k in range(i):
                _, largest, smallest, _ = best[k][j - 1]
                largest, smallest = max(largest, sums[i] - sums[k]), min(smallest, sums[i] - sums[k])
                if row[j][0] >= largest - smallest:
                    row[j] = (largest - smallest, largest, smallest, k)
        best.append(row)
    bounds = [count]
    for part in range(num_parts, 0, -1):
        bounds.append(best[bounds[-1]][part][3])
    return bounds[::-1]
