"""List simulation of orders on flat arrays of numbers (`simulator.schedules.job_shop_list` says what it does).

Functions are written as those of `simulator.schedules.order_timing` are, so that they can be compiled.
"""

from typing import NamedTuple

from simulator.schedules.order_timing import NEVER, Floats, Ints, Shop, rows_at, zeros


class RankMemory(NamedTuple):
    """What ranks hold during a list simulation.

    Attributes
    ----------
    held, oldest, is_blind : array of int
        Bytes of each rank; the first micro-batches that it has not finished; whether any order that fits can go on.
    begun, to_take : array of int
        Bytes of each rank and unit of micro-batches that are held, and that its jobs will yet take.
    """

    held: Ints
    oldest: Ints
    is_blind: Ints
    begun: Ints
    to_take: Ints


def room_of(shop: Shop) -> RankMemory:
    """Return what ranks hold before the first job."""
    num_ranks, num_units = len(shop.room), 0
    for job in range(len(shop.unit)):
        if shop.unit[job] >= num_units:
            num_units = shop.unit[job] + 1
    found = RankMemory(zeros(num_ranks), zeros(num_ranks), zeros(num_ranks), zeros(num_ranks * num_units),
                 zeros(num_ranks * num_units))  # fmt: skip
    for rank in range(num_ranks):
        taking, most, total, one_size = 0, 0, 0, True
        for queue in range(shop.rank_at[rank], shop.rank_at[rank + 1]):
            first = shop.queue_at[queue]
            for job in range(first, shop.queue_at[queue + 1]):
                found.to_take[rank * num_units + shop.unit[job]] += shop.take[job]
                one_size = one_size and shop.take[job] == shop.take[first]
            if shop.take[first] > 0:
                taking += 1
        for unit in range(num_units):
            most = max(most, found.to_take[rank * num_units + unit])
            total += found.to_take[rank * num_units + unit]
        if (one_size and taking <= 1) or most > shop.room[rank] or total <= shop.room[rank]:
            found.is_blind[rank] = 1
    return found


def admits(shop: Shop, room: RankMemory, rank: int, job: int, ahead: bool) -> bool:
    """Whether a job may start: it takes nothing, or all that is begun can still be finished after it.

    Parameters
    ----------
    ahead : bool
        Whether that is asked by the banker's rule, else all older micro-batches have to find room at once.
    """
    taken = shop.take[job]
    left = shop.room[rank] - room.held[rank] - taken
    if taken == 0 or left < 0 or room.is_blind[rank] == 1:
        return taken == 0 or left >= 0
    num_units = len(room.begun) // len(shop.room)
    base, mine = rank * num_units, shop.unit[job]
    while room.oldest[rank] < mine and room.to_take[base + room.oldest[rank]] == 0 and (
        room.begun[base + room.oldest[rank]] == 0
    ):  # fmt: skip
        room.oldest[rank] += 1
    if not ahead:
        needed = -taken
        for unit in range(room.oldest[rank], mine + 1):
            needed += room.to_take[base + unit]
        return left >= needed
    for unit in range(room.oldest[rank], num_units):
        own = 0
        if unit == mine:
            own = taken
        if left < room.to_take[base + unit] - own:
            return False
        left += room.begun[base + unit] + own
    return True


def wake(times: Ints, tree: Ints, rank: int, time_ns: int) -> None:
    """Set when a rank looks for a job again, and keep the one that does so first at the root of a tree."""
    times[rank] = time_ns
    i = (len(tree) // 2 + rank) // 2
    while i >= 1:
        left, right = tree[2 * i], tree[2 * i + 1]
        if times[left] <= times[right]:
            tree[i] = left
        else:
            tree[i] = right
        i //= 2


def list_row(shop: Shop, row: Ints, urgency: Floats, most: Ints, patience: int, ahead: bool) -> bool:
    """Fill in the orders of a list simulation; return False where a rank gets no room.

    Parameters
    ----------
    most : array of int
        How many jobs a queue may be ahead of the queue behind it.
    """
    n, num_ranks = len(shop.duration), len(shop.room)
    row_at, room = rows_at(shop), room_of(shop)
    missing, ready, at = zeros(n), zeros(n), zeros(len(shop.queue_at))
    for job in range(n):
        missing[job] = shop.need_at[job + 1] - shop.need_at[job]
    for queue in range(len(shop.queue_at)):
        at[queue] = shop.queue_at[queue]
    placed, total = zeros(num_ranks), 0
    width = 1
    while width < num_ranks + 1:
        width *= 2
    tree, times, free_ns = zeros(2 * width), zeros(width), zeros(num_ranks)
    for r in range(width):
        tree[width + r] = r
        times[r] = 0 if r < num_ranks else NEVER
    for r in range(0, width, 2):
        wake(times, tree, r, times[r])
    num_units = len(room.begun) // num_ranks
    while times[tree[1]] < NEVER:
        rank = tree[1]
        now = times[rank]
        best, least, arrival, blocked = -1, 0.0, NEVER, False
        for queue in range(shop.rank_at[rank], shop.rank_at[rank + 1]):
            job = at[queue]
            if job == shop.queue_at[queue + 1] or missing[job] > 0 or (patience >= 0 and shop.is_weight[queue] == 1):
                continue
            if job - shop.queue_at[queue] - at[queue + 1] + shop.queue_at[queue + 1] >= most[queue]:
                continue
            if not admits(shop, room, rank, job, ahead):
                blocked = blocked or ready[job] <= now
            elif ready[job] > now:
                arrival = min(arrival, ready[job])
            elif best < 0 or urgency[job] < least:
                best, least = queue, urgency[job]
        if best < 0 and patience >= 0:
            for queue in range(shop.rank_at[rank], shop.rank_at[rank + 1]):
                job = at[queue]
                is_next = shop.is_weight[queue] == 1 and job < shop.queue_at[queue + 1] and missing[job] == 0
                if is_next and (best < 0 or urgency[job] < least):
                    best, least = queue, urgency[job]
            if best >= 0 and not blocked and 100 * (arrival - now) < patience * shop.duration[at[best]]:
                best = -1
        if best < 0:
            wake(times, tree, rank, arrival)
            continue
        job = at[best]
        at[best] += 1
        row[row_at[rank] + placed[rank]] = job
        placed[rank] += 1
        total += 1
        unit = rank * num_units + shop.unit[job]
        room.held[rank] += shop.take[job] - shop.free[job]
        room.begun[unit] += shop.take[job] - shop.free[job]
        room.to_take[unit] -= shop.take[job]
        end = now + shop.duration[job]
        free_ns[rank] = end
        wake(times, tree, rank, end)
        for i in range(shop.feed_at[job], shop.feed_at[job + 1]):
            other = shop.feed[i]
            missing[other] -= 1
            ready[other] = max(ready[other], end + shop.feed_delay[i])
            r = shop.rank[other]
            if r != rank and max(end, free_ns[r]) < times[r]:
                wake(times, tree, r, max(end, free_ns[r]))
    return total == n
