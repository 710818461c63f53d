"""GraphPipe's evaluation again, with every planner of this house: step, memory, depth, search, and what gains what.

    python -m benchmarks.graphpipe [--only SECTION,...] [--seconds 5] [-o FILE.jsonl] [--chart F]

After Jeon et al., GraphPipe, ASPLOS 2025: their three models on 4 to 32 V100 (four a node, 100 Gb/s between nodes), the
same question for PipeDream, Piper, Alpa, GraphPipe and ours, each for so many seconds, 64 samples a device. Sections:

- planners: all planners, every strategy of theirs open (micro-batch sizes 1 to 16, replicas, and for ours ZeRO,
  recompute, several stages a device, split backwards);
- alike: GraphPipe and ours with the same strategies, one device a stage and 2 x devices micro-batches, 8 to 64
  devices, 10 seconds each at least;
- seconds: 32 devices, one micro-batch size, 2 seconds each;
- ablation: what each means gains ours (`penstock ablation`), 32 devices;
- branches: 32 transformer layers in 2 to 16 branches, 16 devices;
- micro-batches: the multi-modal transformer at each micro-batch size, 32 devices;
- line: a transformer without branches, where graphs gain nothing;
- case-study: two branches, 8 devices.

Times are roofline estimates in fp16, the judge of all is the simulator. Rows say the seconds of each search and the
load. Leaves out what the planners' own code would choose (`docs/partition.md` says what is modelled of each).
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.rivals import Asked, answer
from benchmarks.support.kept_rows import add_output, kept
from costmodel.architectures.captured import captured_profile
from costmodel.architectures.command import make
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import Cluster, read_cluster
from costmodel.model.profile import Profile
from costmodel.zoo.mmt import Example, build
from planner import Effort, Problem, Space
from planner.answer.decide import plan
from planner.report.whatif.ablation import ablation

DEVICE, PRECISION, SIZES = "v100-sxm2-16", "fp16", (1, 2, 4, 8, 16)
MODELS = ("zoo:mmt", "zoo:dlrm", "zoo:uno")
WIDER = (*MODELS, "zoo:unet3d", "zoo:vlm")
RIVALS = ("pipedream", "piper", "alpa", "graphpipe")
SAMPLES_A_DEVICE = 64
LAYERS = 32
ALIKE = Space(chunks=1, data=1, tensor=1, context=1, expert=1, zero=0, recompute="none", offload="none")
"""What GraphPipe knows of: single devices and nothing within a stage."""
ALIKE_SIZE = {"zoo:mmt": 2, "zoo:dlrm": 16, "zoo:uno": 16, "zoo:unet3d": 1, "zoo:vlm": 1}
Row = dict[str, Any]


def branches(count: int, batch: int = 8) -> Example:
    """Return a multi-modal transformer of `LAYERS` layers in so many branches."""
    return build(batch, num_branches=count, num_layers=LAYERS // count, hidden=1024, ffn=4096)


def branches_2(batch: int = 8) -> Example:
    """Return two branches of sixteen layers."""
    return branches(2, batch)


def branches_4(batch: int = 8) -> Example:
    """Return four branches of eight layers."""
    return branches(4, batch)


def branches_8(batch: int = 8) -> Example:
    """Return eight branches of four layers."""
    return branches(8, batch)


def branches_16(batch: int = 8) -> Example:
    """Return sixteen branches of two layers."""
    return branches(16, batch)


BRANCHED = {count: f"benchmarks.graphpipe:branches_{count}" for count in (2, 4, 8, 16)}


@cache
def profile_of(model: str) -> Profile:
    """Return a model's estimated profile."""
    if model.startswith("zoo:"):
        return make(model, DEVICE, SIZES, precision=PRECISION)[0]
    return captured_profile(model, catalogue_device(DEVICE), SIZES, PRECISION)


def cluster_of(num_hosts: int = 8) -> Cluster:
    """Return GraphPipe's cluster, of more nodes where that is asked for."""
    path = Path(__file__).with_name("graphpipe_cluster.toml")
    found = read_cluster(path)
    if num_hosts == len(found.hosts):
        return found
    return type(found)(**{**vars(found), "hosts": found.hosts[:1] * num_hosts})


def asked(seconds: float, **more: Any) -> Asked:
    """Return the question that all planners get."""
    given = {"cluster": cluster_of(), "samples_a_device": SAMPLES_A_DEVICE, **more}
    return Asked(seconds, **given)


def compared(section: str, model: str, devices: int, planners: Sequence[str], question: Asked) -> Iterator[Row]:
    """Yield a row a planner, with its step over ours."""
    ours_ns = 0
    for planner in planners:
        found = answer(profile_of(model), devices, planner, question)
        best_ns = found.get("best_step_time_ns", 0)
        ours_ns = best_ns if planner == "ours" else ours_ns
        ratio = {"over_ours": round(best_ns / ours_ns, 4)} if ours_ns and best_ns else {}
        yield {"section": section, "model": model, "devices": devices, "planner": planner, **found, **ratio}


def planners(seconds: float) -> Iterator[Row]:
    """All planners and strategies."""
    for model in MODELS:
        for devices in (4, 8, 16, 32):
            yield from compared("planners", model, devices, ("ours", *RIVALS), asked(seconds))


def alike(seconds: float) -> Iterator[Row]:
    """GraphPipe and ours with the same strategies."""
    for model in WIDER:
        for devices in (8, 16, 32, 64):
            size = ALIKE_SIZE[model]
            question = asked(
                max(10.0, seconds),
                cluster=cluster_of(16),
                samples_a_device=2,
                microbatch_size=size,
                space=ALIKE,
                optimizer="none",
            )
            yield from compared("alike", model, devices, ("ours", "graphpipe"), question)


def in_seconds(_: float) -> Iterator[Row]:
    """Two seconds at one micro-batch size."""
    for model in MODELS:
        question = asked(2.0, microbatch_size=8, samples_a_device=8)
        yield from compared("seconds", model, 32, ("ours", *RIVALS), question)


def ablated(seconds: float) -> Iterator[Row]:
    """Yield what each means gains."""
    for model in MODELS:
        problem = Problem(
            profile_of(model), cluster_of(), 32, 32 * SAMPLES_A_DEVICE, target="any", effort=Effort(seconds)
        )
        for row in ablation(problem, plan).to_json()["rows"]:  # type: ignore[attr-defined]
            yield {"section": "ablation", "model": model, "devices": 32, **row}


def branched(seconds: float) -> Iterator[Row]:
    """As many layers in more and more branches."""
    for count, model in BRANCHED.items():
        for row in compared("branches", model, 16, ("ours", "pipedream", "piper", "graphpipe"), asked(seconds)):
            yield {**row, "branches": count}


def sized(seconds: float) -> Iterator[Row]:
    """Each micro-batch size."""
    for size in SIZES:
        question = asked(seconds, microbatch_size=size, samples_a_device=SAMPLES_A_DEVICE // size)
        yield from compared("micro-batches", "zoo:mmt", 32, ("ours", "pipedream", "graphpipe"), question)


def in_line(seconds: float) -> Iterator[Row]:
    """Yield what all make of a model without branches."""
    yield from compared("line", "zoo:gpt", 16, ("ours", *RIVALS), asked(seconds))


def case_study(seconds: float) -> Iterator[Row]:
    """Two branches."""
    yield from compared("case-study", "zoo:case-study", 8, ("ours", *RIVALS), asked(seconds))


SECTIONS: dict[str, Callable[[float], Iterator[Row]]] = {
    "planners": planners, "alike": alike, "seconds": in_seconds, "ablation": ablated, "branches": branched,
    "micro-batches": sized, "line": in_line, "case-study": case_study,
}  # fmt: skip


def rows(sections: Sequence[str], seconds: float) -> Iterator[Row]:
    """Yield the rows of some sections, each with the load of the machine."""
    for name in sections:
        for row in SECTIONS[name](seconds):
            yield {**row, "load": round(os.getloadavg()[0], 1)}


def text_of(row: Row) -> str:
    """Return a row for people."""
    head = f"{row['section']:13} {row['model'].replace('benchmarks.graphpipe:', ''):15} {row['devices']:3}"
    if "means" in row:
        return f"{head}  {row['means']:28} {row['step_time_ns'] / 1e6:10.3f} ms  {row['gain'] - 1:7.1%}"
    if "refused" in row:
        return f"{head}  {row['planner']:10} {row['refused'][:80]}"
    gap = f"gap {row['gap']:.1%}" if row.get("gap") is not None else ""
    return (
        f"{head}  {row['planner']:10} {row['best_step_time_ns'] / 1e6:10.3f} ms  {row.get('over_ours', 0):6.3f}  "
        f"{row['seconds']:5.1f} s  {row['peak_memory_gib']:6.2f} GiB  depth {row['depth']:2} of {row['stages']:2}  "
        f"{row['schedule']} {row['strategy']}  {gap}"
    )


def summary(found: Sequence[Row]) -> Iterator[str]:
    """Yield how much longer each planner's step is than ours: in the mean, at least and at most."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in found:
        if "over_ours" in row and row["planner"] != "ours":
            ratios.setdefault((row["section"], row["planner"]), []).append(row["over_ours"])
    for (section, planner), values in ratios.items():
        mean, least, most = geometric_mean(values), min(values), max(values)
        yield f"{section:13} {planner:10} {mean:.3f} in the mean of {len(values)}, {least:.3f} to {most:.3f}"
    gaps = [row["gap"] for row in found if row["section"] == "alike" and row["planner"] == "ours" and row.get("gap")]
    if gaps:
        yield f"alike         gap of ours {sum(gaps) / len(gaps):.2%} in the mean, at most {max(gaps):.2%}"


def draw(found: Sequence[Row], path: str) -> None:
    """Draw, for each section with several planners, their steps over ours."""
    from simulator.charts import new_figure, save_figure
    from simulator.charts.style import FILLS, FONT_SIZE

    sections = [name for name in SECTIONS if any(r["section"] == name and "over_ours" in r for r in found)]
    figure, axes = new_figure([2.2] * len(sections))
    for ax, name in zip(axes, sections, strict=True):
        own = [row for row in found if row["section"] == name and "over_ours" in row]
        groups = list(dict.fromkeys(_group(row) for row in own))
        planners = list(dict.fromkeys(row["planner"] for row in own))
        for number, planner in enumerate(planners):
            fill, hatch = FILLS[("ours", *RIVALS).index(planner)]
            bars = [(groups.index(_group(r)), r["over_ours"]) for r in own if r["planner"] == planner]
            width = 0.8 / len(planners)
            ax.bar([place + width * number for place, _ in bars], [ratio for _, ratio in bars], width, color=fill,
                   hatch=hatch, edgecolor="black", linewidth=0.5, label=planner)  # fmt: skip
        ax.axhline(1.0, color="black", linewidth=0.8)
        ax.set_xticks([place + 0.4 for place in range(len(groups))], groups, fontsize=FONT_SIZE - 1)
        ax.set_title(f"{name}: step over ours", fontsize=FONT_SIZE + 1, loc="left")
        ax.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=FONT_SIZE, frameon=False)
    save_figure(figure, path)


def _group(row: Row) -> str:
    model = row["model"].removeprefix("zoo:").removeprefix("benchmarks.graphpipe:").replace("branches_", "")
    size = f"\nb {row['microbatch_size']}" if row["section"] == "micro-batches" else ""
    return f"{model}\n{row['devices']}{size}"


def main() -> int:
    """Print the rows and their means; exit 1 where a rival is faster than ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), metavar="SECTION,...")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each search (5)")
    parser.add_argument("--chart", metavar="F", help="draw the steps over ours (.png, .svg or .pdf)")
    add_output(parser)
    args = parser.parse_args()
    chosen = args.only.split(",")
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    start, found = time.perf_counter(), list[Row]()
    for row in kept(rows(chosen, args.seconds), args.output):
        found.append(row)
        print(text_of(row), flush=True)
    print(*summary(found), sep="\n")
    print(f"{time.perf_counter() - start:.0f} s")
    if args.chart:
        draw(found, args.chart)
    return 1 if any(row.get("over_ours", 1.0) < 1 for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
