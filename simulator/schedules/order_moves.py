"""Tabu search of orders on flat arrays of numbers (`simulator.schedules.job_shop_search` says what it does).

Functions are written as those of `simulator.schedules.order_timing` are, so that they can be compiled.
"""

from typing import NamedTuple

from simulator.schedules.order_timing import Ints, Shop, Timing, draw, rows_at, time_row, timing_for, zeros

REACH = 8
"""How far from either end of a run a job may stand that is moved to that end."""
MOST_TRIED, TABU = 6, 7
"""Moves that are timed at most before one can be run, and moves for which one is not undone, at least."""
MOST_MOVES = 1 << 14
"""Moves that are estimated at most before one is made."""


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
