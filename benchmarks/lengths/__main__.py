"""What packing gains where samples have unlike lengths: simulated on two A100, predicted and measured on two ranks.

    python -m benchmarks.lengths [--rounds 6] [--only uniform|zipf|peaks] [-o FILE.jsonl] [--json]

A row is a histogram of lengths. Simulated: the idle share of a plan of two stages of Llama-3-8B, 64 micro-batches of
two samples, as they come and packed by `plan --lengths`. Measured: one batch of a small model on two gloo ranks of one
thread, 32 micro-batches as they come and packed, whose steps take turns in one pipeline under one plan; the gain is
that of the medians, the prediction that of the same micro-batches by the profile. `gradient_error` is the worst of both
ways against a plain loop over the batch. Nothing else should use the cores: the load is printed.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lengths.ranks import WINDOW, Measured, Microbatches, measured_steps
from benchmarks.support.kept_rows import add_output, kept
from costmodel.architectures.command import make
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile, read_profile
from examples.commands import penstock
from planner import Effort, Plan, Problem, make_plan
from planner.plan import write_plan
from planner.question.lengths import Lengths
from planner.question.space import Space
from planner.report.summary.batch_lengths import AS_THEY_COME, PACKED, BatchLengths, in_bins, in_runs, orders
from tests.support.ranks.rank_pool import RankPool

STEPS = range(1, 33)
HISTOGRAMS = {
    "uniform": dict.fromkeys(STEPS, 100),
    "zipf": {i: 10_000 // i for i in STEPS},
    "peaks": {2: 300, 3: 100, 28: 50, 32: 100},
}
"""How often samples are so many 32nds of the longest."""
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
"""Llama-3-8B."""
LONGEST = 4096
"""Tokens of its longest samples."""
MICROBATCHES = 32
"""Of the measured steps."""
TWO_STAGES = Space(stages=2, chunks=1, data=1, tensor=1)
NEAR = 3.0
"""Points by which the measured gain may be another than the predicted one."""


def main() -> None:
    """Print one row a histogram."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lengths", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="pairs of measured steps (6)")
    parser.add_argument("--only", choices=HISTOGRAMS)
    parser.add_argument("--json", action="store_true")
    add_output(parser)
    args = parser.parse_args()
    names = [name for name in HISTOGRAMS if args.only in (None, name)]
    with tempfile.TemporaryDirectory() as folder:
        rows = list(kept(measured(names, Path(folder), args.rounds), args.output))
    print(json.dumps(rows) if args.json else "\n".join(lines(rows)))


def measured(names: Sequence[str], folder: Path, num_rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of some histograms."""
    config = folder / "llama.json"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    llama = planned(make(str(config), "a100-sxm-80", (1, 2), sequence=LONGEST // 2)[0], 64)
    profile = folder / "profile.json"
    penstock("profile", "benchmarks.lengths.ranks:build", "-o", profile, "--microbatch-sizes", 2, "--repeats", 3)
    small = planned(read_profile(profile), MICROBATCHES, optimizer="none", target="executor")
    file = folder / "plan.json"
    write_plan(file, small[1])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.lengths.ranks"])
    pool = RankPool(2, context)
    try:
        for name in names:
            ways, predicted = tried(BatchLengths(*small, histogram(name, 32 * WINDOW)))
            found: list[Measured] = pool.run(measured_steps, plan=str(file), ways=ways, num_rounds=num_rounds)
            steps = [
                statistics.median(map(max, zip(*rows, strict=True)))  # a step lasts as long as its slower rank
                for rows in zip(*(each.steps_ns for each in found), strict=True)
            ]
            gains = [100 * (before / after - 1) for before, after in (predicted, steps)]
            yield {
                "histogram": name, **simulated(llama, name), "predicted_ns": predicted, "measured_ns": steps,
                "predicted_gain_percent": gains[0], "measured_gain_percent": gains[1],
                "gradient_error": max(each.gradient_error for each in found), "rounds": num_rounds,
                "cores": os.cpu_count(), "load_average": os.getloadavg()[0],
            }  # fmt: skip
    finally:
        pool.close()


def histogram(name: str, longest: int) -> Lengths:
    """Return how many samples have how many tokens."""
    return Lengths(tuple((longest * long // 32, count) for long, count in HISTOGRAMS[name].items()))


def planned(profile: Profile, num_microbatches: int, **options: Any) -> tuple[Problem, Plan]:
    """Return a plan of two stages under 1F1B, of micro-batches of two samples."""
    problem = Problem(
        profile, None if options else A100S, 2, 2 * num_microbatches, microbatch_size=2, schedule="1f1b",
        space=TWO_STAGES, effort=Effort(1.0), **(options or {"target": "any"}),
    )  # fmt: skip
    return problem, make_plan(problem).plan


A100S = Cluster(
    (DeviceType("a100", 80 * 2**30, "cuda", "a100-sxm-80"),),
    (Host("a100", 2),),
    (LinkGroup("nvlink", 0, 200.0, 1000),),
)


def simulated(llama: tuple[Problem, Plan], name: str) -> dict[str, float]:
    """Return the idle shares of the large plan."""
    found = BatchLengths(*llama, histogram(name, LONGEST))
    return {f"idle_{way.replace(' ', '_')}": statistics.fmean(found.ways[way].idle) for way in (AS_THEY_COME, PACKED)}


def tried(found: BatchLengths) -> tuple[list[Microbatches], list[int]]:
    """Return a batch's micro-batches as they come and packed, in the best order, and what their steps take."""
    plan, costs = found.plan, found.costs
    batch = found.lengths.batches(1, plan.batch.global_size, 0)[0]
    packed = in_bins(batch, plan.batch.num_microbatches, costs.work_ns)
    made = [in_runs(batch, plan.batch.microbatch_size), *orders(packed, costs.work_ns)]
    times = found.structure.times_many([costs.of(each) for each in made], [plan.speeds] * len(made))
    steps = [each.step_time_ns for each in times]
    best = min(range(1, len(made)), key=steps.__getitem__)
    return [made[0], made[best]], [steps[0], steps[best]]


def lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the rows for people."""
    for row in rows:
        apart = row["measured_gain_percent"] - row["predicted_gain_percent"]
        yield (
            f"{row['histogram']:<8} idle {row['idle_as_they_come']:.1%} as they come, {row['idle_packed']:.1%} packed; "
            f"gain {row['predicted_gain_percent']:.1f} % predicted, {row['measured_gain_percent']:.1f} % measured "
            f"({apart:+.1f} points{'' if abs(apart) <= NEAR else ': missed'}), gradients apart by "
            f"{row['gradient_error']:.0e}; load average {row['load_average']:.2f} on {row['cores']} cores"
        )


if __name__ == "__main__":
    main()
