"""How fast the engine is against a plain Python pass over the same events, in one run.

64 ranks, 512 micro-batches, zb-h1 (F, I and W) with delays between ranks: 98,304 actions and 64,512
transfers. The plain pass is Kahn's algorithm on lists: events, transfers among them, with their times and
the lists of what waits for each ready made. Cold is orders in, all start and end times out; cached is the
same structure under new costs, all start and end times out; one and many are step times under new costs,
of one and of 32 costs at once. Sides alternate; times are medians of the process's CPU time, which other
work on the machine disturbs least (one thread on both sides).

python -m benchmarks.engine_speed [--json] [--rounds N]
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random

from costmodel.stages.costs import Costs
from simulator.engine import Structure
from simulator.schedules import build_schedule
from simulator.uniform import uniform_costs

RANKS, MICROBATCHES, SCENARIOS = 64, 512, 32

Graph = tuple[list[int], list[list[int]], list[int]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    answer = measure(args.rounds)
    print(json.dumps(answer) if args.json else "\n".join(f"{key:>28}: {value}" for key, value in answer.items()))


def measure(rounds: int) -> dict[str, float]:
    """Time all sides in turn."""
    costs = uniform_costs(RANKS, 1, 11347, 11248, 8132, 377)
    schedule = build_schedule("zb-h1", costs, MICROBATCHES)
    structure = Structure(schedule)
    graph = plain_graph(structure, costs)
    rng = Random(0)  # noqa: S311 - no secrets here
    scenarios = [_jittered(costs, rng) for _ in range(SCENARIOS)]

    def plain() -> int:
        return max(kahn(*graph))

    def cold() -> int:
        times = Structure(schedule).times(costs)
        return int(max(times.start.max(), times.end.max()))

    def cached() -> int:
        times = structure.times(scenarios[0])
        return int(max(times.start.max(), times.end.max()))

    def one() -> int:
        return structure.times(scenarios[0]).step_time_ns

    def many() -> int:
        return max(times.step_time_ns for times in structure.times_many(scenarios))

    if not plain() == cold() == structure.times(costs).step_time_ns:
        raise AssertionError("the engine and the plain pass differ")
    sides: list[Callable[[], int]] = [plain, cold, cached, one, many]
    seconds: dict[str, list[float]] = {side.__name__: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            gc.collect()
            begin = time.process_time()
            side()
            seconds[side.__name__].append(time.process_time() - begin)
    return _answer({name: 1000 * statistics.median(times) for name, times in seconds.items()}, len(graph[0]))


def _answer(ms: dict[str, float], num_events: int) -> dict[str, float]:
    each = ms["many"] / SCENARIOS
    return {
        "events": num_events,
        "plain_ms": ms["plain"],
        "cold_ms": ms["cold"],
        "cached_ms": ms["cached"],
        "one_step_time_ms": ms["one"],
        "many_step_times_ms_per_scenario": each,
        "cold_speedup": ms["plain"] / ms["cold"],
        "cached_speedup": ms["plain"] / ms["cached"],
        "many_speedup_per_scenario": ms["one"] / each,
        "load_average": os.getloadavg()[0],
    }


def _jittered(costs: Costs, rng: Random) -> Costs:
    """Costs with every time up to 10 % longer."""

    def longer(time_ns: object) -> int:
        assert isinstance(time_ns, int)
        return round(time_ns * (1 + rng.random() / 10))

    stages = tuple(
        replace(
            stage,
            forward_ns=longer(stage.forward_ns),
            backward_input_ns=longer(stage.backward_input_ns),
            backward_weight_ns=longer(stage.backward_weight_ns),
        )
        for stage in costs.stages
    )
    return replace(costs, stages=stages)


def plain_graph(structure: Structure, costs: Costs) -> Graph:
    """Return times of events, what waits for each, and how many each waits for: actions, then messages."""
    times, messages = structure.times(costs), structure.wiring.messages
    rank = structure.arrays.rank.tolist()
    sent, arrived = times.sent
    durations = (times.end - times.start).tolist() + (arrived - sent).tolist()
    users: list[list[int]] = [[] for _ in durations]
    for action in range(1, len(rank)):
        if rank[action] == rank[action - 1]:
            users[action - 1].append(action)
    for message, (source, target) in enumerate(zip(messages.source.tolist(), messages.target.tolist(), strict=True)):
        users[source].append(len(rank) + message)
        users[len(rank) + message].append(target)
    waits = [0] * len(durations)
    for following in users:
        for event in following:
            waits[event] += 1
    return durations, users, waits


def kahn(durations: list[int], users: list[list[int]], waits: list[int]) -> list[int]:
    """Return the end of each event: the plain pass."""
    left = waits.copy()
    start = [0] * len(durations)
    end = [0] * len(durations)
    ready = deque(event for event, count in enumerate(left) if not count)
    while ready:
        event = ready.popleft()
        now = end[event] = start[event] + durations[event]
        for user in users[event]:
            if start[user] < now:
                start[user] = now
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return end


if __name__ == "__main__":
    main()
