"""Times of orders, list simulations and tabu search on flat arrays of numbers, so that they can be compiled.

Every function runs as it is on lists, and compiled on arrays of 64-bit integers with the same results: it uses indices,
whole numbers and plain arithmetic alone, draws its random numbers itself, and calls only what stands before it here.
Whoever compiles them (`planner.search.solvers.order_kernels`) puts its forms into `Active`. What a list simulation does
is said in `simulator.schedules.job_shop_list`, what a tabu search does in `simulator.schedules.job_shop_search`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

Ints = list[int]
Floats = list[float]

NEVER = 1 << 55
"""A time that no step reaches, ns; a hundred times as much is still a 64-bit number."""
REACH = 8
"""How far from either end of a run a job may stand that is moved to that end."""
MOST_TRIED, TABU = 6, 7
"""Moves that are timed at most before one can be run, and moves for which one is not undone, at least."""
MOST_MOVES = 1 << 14
"""Moves that are estimated at most before one is made."""
MULTIPLIER, MODULUS = 48271, 2147483647
"""Of random numbers (Park and Miller, Random number generators: good ones are hard to find, CACM 31, 1988)."""


class Shop(NamedTuple):
    """The jobs of a step as flat arrays; jobs of a queue have consecutive numbers, and so have queues of a rank.

    Attributes
    ----------
    duration, after, rank, take, free, unit : array of int
        One entry a job, as in `simulator.schedules.job_shop.JobShop`.
    need_at, need, need_delay : array of int
        Where the jobs that each job waits for begin in the other two, which hold their numbers and delays (ns).
    feed_at, feed, feed_delay : array of int
        The same for the jobs that wait for each job.
    queue, queue_at, is_weight : array of int
        Number of each job's queue; the first job of each queue; whether a queue holds weight gradients.
    rank_at, room : array of int
        The first queue of each rank; bytes that it may hold in addition to its static part.
    """

    duration: Ints
    after: Ints
    rank: Ints
    take: Ints
    free: Ints
    unit: Ints
    need_at: Ints
    need: Ints
    need_delay: Ints
    feed_at: Ints
    feed: Ints
    feed_delay: Ints
    queue: Ints
    queue_at: Ints
    is_weight: Ints
    rank_at: Ints
    room: Ints


class Timing(NamedTuple):
    """Times of the jobs under some orders.

    Attributes
    ----------
    start, tail : array of int
        Earliest start; the longest path from the start of a job to the end of the step.
    before, behind : array of int
        The job before and the one behind each on its rank, -1 where there is none.
    order, waiting : array of int
        Jobs in an order in which each follows what it waits for; room for counting.
    """

    start: Ints
    tail: Ints
    before: Ints
    behind: Ints
    order: Ints
    waiting: Ints


class Moves(NamedTuple):
    """Moves of a job within the row of its rank, one entry a move.

    Attributes
    ----------
    rank, source, target : array of int
        Rank, position from and position to.
    step_ns, dice, state : array of int
        The estimate of the step after it; a number that decides between equals; whether it is `OPEN`, found `SHUT`
        by the tabu list, or was `TRIED`.
    """

    rank: Ints
    source: Ints
    target: Ints
    step_ns: Ints
    dice: Ints
    state: Ints


class Taboo(NamedTuple):
    """Pairs of jobs that may not get back into an order that was left: a ring, and until which move each pair counts.

    Attributes
    ----------
    first, second, until : array of int
    last : array of int
        Until which move some pair of each job counts.
    """

    first: Ints
    second: Ints
    until: Ints
    last: Ints


OPEN, SHUT, TRIED = range(3)


def zeros(number: int) -> Ints:
    """Return a row of zeros."""
    return [0] * number


def floats(number: int) -> Floats:
    """Return a row of zeros that are floating-point numbers."""
    return [0.0] * number


def draw(dice: Ints) -> int:
    """Return the next random number from 1 to `MODULUS` - 1."""
    dice[0] = dice[0] * MULTIPLIER % MODULUS
    return dice[0]


def noisy(base: Ints, wrong: float, dice: Ints) -> Floats:
    """Return numbers that are wrong by up to some amount."""
    found = floats(len(base))
    for i in range(len(base)):
        found[i] = base[i] + wrong * (2.0 * draw(dice) / MODULUS - 1.0)
    return found


def timing_for(shop: Shop) -> Timing:
    """Return room for the times of orders."""
    n = len(shop.duration)
    return Timing(zeros(n), zeros(n), zeros(n), zeros(n), zeros(n), zeros(n))


def time_row(shop: Shop, row: Ints, row_at: Ints, at: Timing) -> int:
    """Time orders, rows of ranks one behind the other; return the step in ns, -1 where ranks wait on each other."""
    n = len(shop.duration)
    for r in range(len(row_at) - 1):
        last = -1
        for i in range(row_at[r], row_at[r + 1]):
            job = row[i]
            at.before[job] = last
            if last >= 0:
                at.behind[last] = job
            last = job
        if last >= 0:
            at.behind[last] = -1
    count = 0
    for job in range(n):
        at.start[job] = 0
        waiting = shop.need_at[job + 1] - shop.need_at[job]
        if at.before[job] >= 0:
            waiting += 1
        at.waiting[job] = waiting
        if waiting == 0:
            at.order[count] = job
            count += 1
    step_ns, done = 0, 0
    while done < count:
        job = at.order[done]
        done += 1
        end = at.start[job] + shop.duration[job]
        if end + shop.after[job] > step_ns:
            step_ns = end + shop.after[job]
        for i in range(shop.feed_at[job], shop.feed_at[job + 1]):
            other = shop.feed[i]
            if end + shop.feed_delay[i] > at.start[other]:
                at.start[other] = end + shop.feed_delay[i]
            at.waiting[other] -= 1
            if at.waiting[other] == 0:
                at.order[count] = other
                count += 1
        other = at.behind[job]
        if other >= 0:
            if end > at.start[other]:
                at.start[other] = end
            at.waiting[other] -= 1
            if at.waiting[other] == 0:
                at.order[count] = other
                count += 1
    if count < n:
        return -1
    for i in range(n - 1, -1, -1):
        job = at.order[i]
        longest = shop.after[job]
        for k in range(shop.feed_at[job], shop.feed_at[job + 1]):
            tail = at.tail[shop.feed[k]] + shop.feed_delay[k]
            if tail > longest:
                longest = tail
        other = at.behind[job]
        if other >= 0 and at.tail[other] > longest:
            longest = at.tail[other]
        at.tail[job] = longest + shop.duration[job]
    return step_ns


def rows_at(shop: Shop) -> Ints:
    """Return where each rank's row begins in orders that stand one behind the other."""
    found = zeros(len(shop.rank_at))
    for r in range(len(shop.rank_at)):
        found[r] = shop.queue_at[shop.rank_at[r]]
    return found


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
        taking, most, one_size = 0, 0, True
        for queue in range(shop.rank_at[rank], shop.rank_at[rank + 1]):
            first = shop.queue_at[queue]
            for job in range(first, shop.queue_at[queue + 1]):
                found.to_take[rank * num_units + shop.unit[job]] += shop.take[job]
                one_size = one_size and shop.take[job] == shop.take[first]
            if shop.take[first] > 0:
                taking += 1
        for unit in range(num_units):
            most = max(most, found.to_take[rank * num_units + unit])
        if (one_size and taking <= 1) or most > shop.room[rank]:
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


def list_row(shop: Shop, row: Ints, urgency: Floats, patience: int, ahead: bool) -> bool:
    """Fill in the orders of a list simulation; return False where a rank gets no room."""
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


def is_allowed(shop: Shop, row: Ints, held: Ints, rank_begin: int, rank: int, source: int, target: int) -> bool:
    """Whether a job may be moved: queues stay in order, it passes nothing that one waits for, and memory suffices."""
    job = row[rank_begin + source]
    low, high = min(source, target), max(source, target)
    for i in range(rank_begin + low, rank_begin + high + 1):
        passed = row[i]
        if passed != job:
            if shop.queue[passed] == shop.queue[job]:
                return False
            if target > source:
                for k in range(shop.feed_at[job], shop.feed_at[job + 1]):
                    if shop.feed[k] == passed:
                        return False
            else:
                for k in range(shop.need_at[job], shop.need_at[job + 1]):
                    if shop.need[k] == passed:
                        return False
    holds = held[rank_begin + low]
    if target < source:
        holds += shop.take[job]
        if holds > shop.room[rank]:
            return False
        holds -= shop.free[job]
    for i in range(rank_begin + low, rank_begin + high + 1):
        passed = row[i]
        if passed != job:
            holds += shop.take[passed]
            if holds > shop.room[rank]:
                return False
            holds -= shop.free[passed]
    return target < source or holds + shop.take[job] <= shop.room[rank]


def estimate(shop: Shop, row: Ints, begin: int, stop: int, source: int, target: int, at: Timing, moved: Ints,
             starts: Ints) -> int:  # fmt: skip
    """Return the longest path through the jobs that change places, others staying as they are (Taillard 1994), ns."""
    low, high = begin + min(source, target), begin + max(source, target)
    number = high - low + 1
    for i in range(number):
        moved[i] = row[low + i]
    if target > source:
        for i in range(number - 1):
            moved[i] = row[low + i + 1]
        moved[number - 1] = row[low]
    else:
        for i in range(1, number):
            moved[i] = row[low + i - 1]
        moved[0] = row[high]
    end = 0
    if low > begin:
        end = at.start[row[low - 1]] + shop.duration[row[low - 1]]
    for i in range(number):
        job = moved[i]
        for k in range(shop.need_at[job], shop.need_at[job + 1]):
            other = shop.need[k]
            end = max(end, at.start[other] + shop.duration[other] + shop.need_delay[k])
        starts[i] = end
        end += shop.duration[job]
    tail = 0
    if high + 1 < stop:
        tail = at.tail[row[high + 1]]
    longest = 0
    for i in range(number - 1, -1, -1):
        job = moved[i]
        tail = max(tail, shop.after[job])
        for k in range(shop.feed_at[job], shop.feed_at[job + 1]):
            tail = max(tail, at.tail[shop.feed[k]] + shop.feed_delay[k])
        tail += shop.duration[job]
        longest = max(longest, starts[i] + tail)
    return longest


def follow(shop: Shop, job: int, step_ns: int, at: Timing, dice: Ints) -> int:
    """Return a job that follows on a longest path, drawn among these; -1 at its end."""
    end = at.start[job] + shop.duration[job]
    left = step_ns - end
    found, number, behind = -1, 0, at.behind[job]
    if left > 0:
        for k in range(shop.feed_at[job], shop.feed_at[job + 1]):
            other, delay = shop.feed[k], shop.feed_delay[k]
            if other != behind and at.start[other] == end + delay and at.tail[other] + delay == left:
                number += 1
                if draw(dice) % number == 0:
                    found = other
        if behind >= 0 and at.start[behind] == end and at.tail[behind] == left:
            number += 1
            if draw(dice) % number == 0:
                found = behind
    return found


def fill_held(shop: Shop, row: Ints, begin: int, stop: int, held: Ints) -> None:
    """Fill in what a rank holds before each job of its row."""
    holds = 0
    for i in range(begin, stop):
        held[i] = holds
        holds += shop.take[row[i]] - shop.free[row[i]]


def add_moves(shop: Shop, row: Ints, row_at: Ints, held: Ints, first: int, last: int, place: Ints, dice: Ints,
              moves: Moves, count: int) -> int:  # fmt: skip
    """Add the moves of jobs to either end of a run, from its first to its last job; return how many moves there are."""
    rank = shop.rank[first]
    begin = row_at[rank]
    low, high = place[first] - begin, place[last] - begin
    for end in range(2):
        start, stop, fixed = low + 1, min(high, low + REACH) + 1, low
        if end == 1:
            start, stop, fixed = max(low, high - REACH), high, high
        for position in range(start, stop):
            if end == 1 and position == low and high - low <= REACH:
                continue  # it stands among those of the other end
            for way in range(2):
                source, target = fixed, position
                if way == 1:
                    source, target = position, fixed
                if count < MOST_MOVES and is_allowed(shop, row, held, begin, rank, source, target):
                    moves.rank[count], moves.source[count], moves.target[count] = rank, source, target
                    moves.dice[count], moves.state[count] = draw(dice), OPEN
                    count += 1
    return count


def collect(shop: Shop, row: Ints, row_at: Ints, held: Ints, step_ns: int, at: Timing, place: Ints, dice: Ints,
            moves: Moves) -> int:  # fmt: skip
    """Collect the moves of the runs on a longest path that is drawn; return how many there are."""
    job, number = -1, 0
    for other in range(len(shop.duration)):
        if at.start[other] == 0 and at.tail[other] == step_ns:
            number += 1
            if draw(dice) % number == 0:
                job = other
    count, first = 0, job
    while job >= 0:
        following = follow(shop, job, step_ns, at, dice)
        if following < 0 or at.behind[job] != following:
            if first != job:
                count = add_moves(shop, row, row_at, held, first, job, place, dice, moves, count)
            first = following
        job = following
    return count


def is_taboo(taboo: Taboo, row: Ints, begin: int, source: int, target: int, number: int) -> bool:
    """Whether a move puts jobs back into an order that was left not long ago."""
    job = row[begin + source]
    if taboo.last[job] < number:
        return False
    for i in range(begin + min(source, target), begin + max(source, target) + 1):
        passed = row[i]
        if passed != job and taboo.last[passed] >= number:
            first, second = job, passed
            if target > source:
                first, second = passed, job
            for k in range(len(taboo.until)):
                if taboo.until[k] >= number and taboo.first[k] == first and taboo.second[k] == second:
                    return True
    return False


def shift(row: Ints, begin: int, source: int, target: int) -> None:
    """Move a job within the row of its rank."""
    job, step = row[begin + source], 1
    if target < source:
        step = -1
    for i in range(source, target, step):
        row[begin + i] = row[begin + i + step]
    row[begin + target] = job


def choose(moves: Moves, count: int, taboo: Taboo, row: Ints, row_at: Ints, best_ns: int, number: int) -> int:
    """Return the open move with the least estimate that is not tabu, else the least that is; -1 where none is left."""
    for wanted in (OPEN, SHUT):
        while True:
            best = -1
            for i in range(count):
                if moves.state[i] == wanted and (
                    best < 0
                    or moves.step_ns[i] < moves.step_ns[best]
                    or (moves.step_ns[i] == moves.step_ns[best] and moves.dice[i] < moves.dice[best])
                ):
                    best = i
            if best < 0:
                break
            begin = row_at[moves.rank[best]]
            if wanted == SHUT or moves.step_ns[best] < best_ns or not is_taboo(
                taboo, row, begin, moves.source[best], moves.target[best], number
            ):  # fmt: skip
                return best
            moves.state[best] = SHUT
    return -1


def remember(taboo: Taboo, row: Ints, begin: int, source: int, target: int, until: int, slot: int) -> int:
    """Note the pairs that a move, made already, has put into another order; return the next slot of the ring."""
    job = row[begin + target]
    for i in range(begin + min(source, target), begin + max(source, target) + 1):
        other = row[i]
        if other != job:
            taboo.first[slot], taboo.second[slot], taboo.until[slot] = other, job, until
            if target > source:
                taboo.first[slot], taboo.second[slot] = job, other
            taboo.last[job], taboo.last[other] = max(taboo.last[job], until), max(taboo.last[other], until)
            slot = (slot + 1) % len(taboo.until)
    return slot


def search_row(shop: Shop, row: Ints, num_moves: int, enough_ns: int, dice: Ints) -> int:
    """Search from orders by moves; they become the best that were met, whose step in ns is returned."""
    n = len(shop.duration)
    row_at, at, place, now, held = rows_at(shop), timing_for(shop), zeros(n), zeros(n), zeros(n)
    most = min(MOST_MOVES, 4 * REACH * n)
    moves = Moves(zeros(most), zeros(most), zeros(most), zeros(most), zeros(most), zeros(most))
    ring = 2 * TABU * REACH
    taboo = Taboo(zeros(ring), zeros(ring), zeros(ring), zeros(n))
    moved, starts, slot = zeros(REACH + 1), zeros(REACH + 1), 0
    for i in range(n):
        now[i] = row[i]
        place[row[i]] = i
    for r in range(len(row_at) - 1):
        fill_held(shop, now, row_at[r], row_at[r + 1], held)
    step_ns = time_row(shop, now, row_at, at)
    best_ns, number = step_ns, 1
    while number <= num_moves and best_ns > enough_ns:
        count = collect(shop, now, row_at, held, step_ns, at, place, dice, moves)
        for i in range(count):
            rank = moves.rank[i]
            moves.step_ns[i] = estimate(
                shop, now, row_at[rank], row_at[rank + 1], moves.source[i], moves.target[i], at, moved, starts
            )
        made = False
        for _ in range(MOST_TRIED):
            chosen = choose(moves, count, taboo, now, row_at, best_ns, number)
            if chosen < 0:
                break
            moves.state[chosen] = TRIED
            rank, source, target = moves.rank[chosen], moves.source[chosen], moves.target[chosen]
            number += 1
            shift(now, row_at[rank], source, target)
            step_ns = time_row(shop, now, row_at, at)
            if step_ns >= 0:
                until = number + TABU + draw(dice) % TABU
                slot = remember(taboo, now, row_at[rank], source, target, until, slot)
                fill_held(shop, now, row_at[rank], row_at[rank + 1], held)
                for i in range(row_at[rank], row_at[rank + 1]):
                    place[now[i]] = i
                made = True
                break
            shift(now, row_at[rank], target, source)
        if not made:
            break
        if step_ns < best_ns:
            best_ns = step_ns
            for i in range(n):
                row[i] = now[i]
    return best_ns


KERNELS = (
    draw, noisy, timing_for, time_row, rows_at, room_of, admits, wake, list_row, is_allowed, estimate, follow,
    fill_held, add_moves, collect, is_taboo, shift, choose, remember, search_row,
)  # fmt: skip
"""All that is compiled, each behind what it calls."""


@dataclass(frozen=True, slots=True)
class OrderKernels:
    """The forms in which the functions of this module run.

    Attributes
    ----------
    ints : function
        Makes an array of whole numbers.
    noisy, time_row, timing_for, list_row, search_row : function
    """

    ints: Callable[[Sequence[int]], Ints]
    noisy: Callable[[Ints, float, Ints], Floats]
    time_row: Callable[[Shop, Ints, Ints, Timing], int]
    timing_for: Callable[[Shop], Timing]
    list_row: Callable[[Shop, Ints, Floats, int, bool], bool]
    search_row: Callable[[Shop, Ints, int, int, Ints], int]

    @staticmethod
    def plain() -> "OrderKernels":
        """Return the functions as they stand here, for lists."""
        return OrderKernels(list, noisy, time_row, timing_for, list_row, search_row)


class Active:
    """The forms that are in use in this process: the plain ones until compiled ones are loaded."""

    kernels: ClassVar[OrderKernels] = OrderKernels.plain()
