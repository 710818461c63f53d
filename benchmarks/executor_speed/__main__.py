"""Our executor against torch.distributed.pipelining, and a plan of one stage against a plain training loop.

    python -m benchmarks.executor_speed [--runs 15] [--only NAME] [--json]

The same chain of transformer layers, cut, micro-batches and order, two gloo ranks, one thread each. zero-2, zero-3 and
fsdp are 1F1B of two stages on two replicas each (four ranks), every layer divided by `fully_shard`, gradients summed
once a step: plans of ZeRO-2 and ZeRO-3 against torch's side that gathers when they do, and a plan of ZeRO-2 against
torch's own choice, which keeps a stage's parameters from each backward to the next forward; how often each side gathers
and what it holds at most is counted in one step more. Both sides live in the
same processes and step in turn, who goes first changing from run to run, so that the machine's drift hits both.
A step lasts as long as its slower rank. The ratio is ours over theirs, the median over the pairs (and its quartiles):
below 1 ours is faster. CPU is the same of the CPU time of all ranks, which other work on the machine disturbs less.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tests.support.ranks.rank_pool import RankPool

BARS = {"pipelined": 1.02, "single": 1.03}
"""The largest median ratio asked for."""

NAMES = ("gpipe", "1f1b", "interleaved-1f1b", "interleaved-zb", "zb-v", "zero-2", "zero-3", "fsdp", "one-stage")


def main() -> None:
    """Measure and print one row a schedule."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.executor_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=15, help="pairs of steps a schedule (15)")
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [measure(name, args.runs) for name in NAMES if args.only in (None, name)]
    answer = {"rows": rows, "runs": args.runs, "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    if args.json:
        print(json.dumps(answer))
        return
    for row in rows:
        low, high = row["ratio_quartiles"]
        print(
            f"{row['name']:<18} ours / {row['rival']:<28} {row['ratio']:.3f} ({low:.3f} to {high:.3f}), "
            f"CPU {row['cpu_ratio']:.3f}, {row['ours_ms']:.1f} / {row['theirs_ms']:.1f} ms, "
            f"actions of {row['shortest_action_ms']:.1f} ms and more, gradients apart by {row['gradient_error']:.0e}"
            + "".join(
                f"; {side}: {gathers} gathers, {peak / 1e6:.1f} MB" for side, gathers, peak in row.get("held", ())
            )
        )
    print(f"{args.runs} pairs of steps each, two ranks (one-stage: one, zero-2, zero-3, fsdp: four), one thread a rank")
    print(f"{answer['cores']} cores, load average {answer['load_average']:.2f}")


def measure(name: str, num_runs: int) -> dict[str, Any]:
    """Return the row of one schedule, measured in processes of its own."""
    from benchmarks.executor_speed.sides import SHARDED, pipelined, sharded, single

    print(f"{name}: {num_runs} pairs of steps", file=sys.stderr, flush=True)
    alone = name == "one-stage"
    pool = RankPool(1 if alone else 4 if name in SHARDED else 2)
    try:
        if alone:
            found = pool.run(single, num_runs=num_runs)
        else:
            found = pool.run(sharded if name in SHARDED else pipelined, name=name, num_runs=num_runs)
    finally:
        pool.close()
    ours, ours_cpu = _over_ranks([rank.ours_ns for rank in found])
    theirs, theirs_cpu = _over_ranks([rank.theirs_ns for rank in found])
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return {
        "name": name,
        "rival": "the plain loop" if alone else "torch.distributed.pipelining",
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [quartiles[0], quartiles[2]],
        "ratio_of_medians": statistics.median(ours) / statistics.median(theirs),
        "cpu_ratio": statistics.median(ours_cpu) / statistics.median(theirs_cpu),
        "bar": BARS["single" if alone else "pipelined"],
        "ours_ms": statistics.median(ours) / 1e6,
        "theirs_ms": statistics.median(theirs) / 1e6,
        "gradient_error": max(rank.gradient_error for rank in found),
        "shortest_action_ms": min(rank.shortest_action_ns for rank in found) / 1e6,
        **({"held": found[0].held} if name in SHARDED else {}),
        "ours_ns": ours,
        "theirs_ns": theirs,
    }


def _over_ranks(times: Sequence[Sequence[tuple[int, int]]]) -> tuple[list[int], list[int]]:
    """Return each run's step time, which is the slowest rank's, and the CPU time of all ranks."""
    runs = list(zip(*times, strict=True))
    return [max(step for step, _ in run) for run in runs], [sum(cpu for _, cpu in run) for run in runs]


if __name__ == "__main__":
    main()
