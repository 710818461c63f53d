"""Which strategy for which model on which machines, and where the usual rules of thumb lose.

    python -m benchmarks.advice [--only REGEX] [--seconds 5] [-o FILE.jsonl] [--chart F]

Each case is a model on a cluster. It is planned with everything open (any target, 8 samples a device), then as each
rule of thumb would have it, and each answer is asked again: the two next best rungs of its ladder are searched by
themselves, all with the same seconds. Rules, with the case in which each is said to hold:

- data parallel where it fits: replicas alone, nothing run again;
- ZeRO before tensor, where that does not fit: replicas of the best ZeRO stage, with or without recompute;
- tensor inside a host, where that does not fit: the host's devices divide the operators, replicas across hosts;
- pipeline across hosts, where that does not fit: the host's devices divide the operators, a stage for each host.

A rule loses where it fits and the best plan is more than 1 % faster. The thumb's answer is the first rule that fits.
Times are roofline estimates of catalogue devices. Exit 1 where a rule or a rung is more than 1 % faster than the answer
that everything was open for. Leaves out price, and what a trainer can run (`--target any`). Models captured from torch
do not say how their operators divide, so that tensor degrees are not priced for them.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torch import nn

from benchmarks.kept_rows import add_output, kept
from benchmarks.mixed import A100, V100
from benchmarks.mixed import cluster_of as mixed_cluster
from costmodel.architectures.captured import captured_profile
from costmodel.architectures.command import make
from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import Cluster
from costmodel.machines.parts import LinkGroup
from costmodel.machines.typical import typical_cluster
from costmodel.model.profile import Profile
from costmodel.zoo.llama import build_llama3
from costmodel.zoo.unet3d import build as build_unet3d
from planner import Effort, PlanAnswer, Problem, Space, make_plan

H100 = "h100-sxm-80"
SAMPLES_A_DEVICE = 8
SIZES = (1, 2, 4, 8)
NEAR = 1.01
"""Times the best step up to which a rule of thumb holds, and a rung may be below the answer."""
Row = dict[str, Any]


class Adapted(nn.Module):
    """A frozen linear layer with a trained low-rank term (Hu et al., LoRA, ICLR 2022)."""

    def __init__(self, frozen: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        """Add both terms."""
        return self.frozen(x) + self.up(self.down(x))


def lora(batch: int = 1) -> Any:
    """Return eight layers of Llama-3-8B whose query and value projections alone are tuned."""
    model, *others = build_llama3(batch)
    model.requires_grad_(False)
    for layer in model.layers:  # type: ignore[union-attr]
        attention = layer.attention
        attention.query, attention.value = Adapted(attention.query), Adapted(attention.value)
    return model, *others


def volumes(batch: int = 1) -> Any:
    """Return a 3-D U-Net on volumes whose activations no device holds."""
    return build_unet3d(batch, side=512)


LORA, VOLUMES = "benchmarks.advice:lora", "benchmarks.advice:volumes"
MODELS = ("zoo:yolo", "llama3-8b", "llama3-70b", "mixtral-8x7b", VOLUMES, LORA, "zoo:dlrm", "zoo:mmt", "zoo:vlm")


def slow_hosts() -> Cluster:
    """Return four hosts of eight H100 joined by 10 Gb/s."""
    fast = typical_cluster(H100, 32)
    return replace(fast, groups=(fast.groups[0], LinkGroup("ethernet", 0, 1.25, 20_000, shared_gbs=1.25)))


CLUSTERS = {
    "1 H100": typical_cluster(H100, 1),
    "8 H100": typical_cluster(H100, 8),
    "64 H100": typical_cluster(H100, 64),
    "32 H100, 10 Gb/s": slow_hosts(),
    "8 A100 + 8 V100, 10 Gb/s": mixed_cluster((A100, V100)),
}
DATA, ZERO = "data parallel where it fits", "ZeRO before tensor"
TENSOR, PIPELINE = "tensor inside a host", "pipeline across hosts"


@cache
def profile_of(model: str, device: str, precision: str) -> Profile:
    """Return a model's estimated profile on a device."""
    if model.startswith("benchmarks."):
        return captured_profile(model, catalogue_device(device), SIZES, precision)
    return make(model, device, SIZES, precision=precision)[0]


def rules(cluster: Cluster) -> Iterator[tuple[str, Space]]:
    """Yield what each rule of thumb fixes, in the order in which they are tried."""
    devices, host = cluster.num_devices, cluster.hosts[0].devices
    whole = Space(stages=1, context=1, expert=1, offload="none")
    yield DATA, replace(whole, data=devices, tensor=1, zero=0, recompute="none")
    if devices > 1:
        yield ZERO, replace(whole, data=devices, tensor=1)
        yield TENSOR, replace(whole, tensor=host)
    if devices > host:
        yield PIPELINE, replace(whole, tensor=host, stages=devices // host)


def space_of(strategy: str) -> Space:
    """Return the space of a rung: what its name leaves out is fixed to nothing."""
    names = strategy.split("+")
    zero = max((int(name[-1]) for name in names if name.startswith("zero-")), default=0)
    return Space(
        stages=None if any("pipeline" in name for name in names) else 1,
        data=None if zero or "data-parallel" in names else 1,
        zero=zero,
        offload=None if "offload" in names else "none",
        tensor=None if "tensor" in names else 1,
        context=None if "context" in names else 1,
        expert=None if "expert" in names else 1,
    )


@dataclass(frozen=True)
class Case:
    """A model on a cluster, and the time limit of each search in seconds."""

    model: str
    place: str
    seconds: float

    def answer(self, space: Space) -> PlanAnswer | str:
        """Return the best plan of a space, or why there is none."""
        cluster = CLUSTERS[self.place]
        precision = "bf16" if len(cluster.devices) == 1 else "fp16"  # V100 have no bf16
        profile, *others = (profile_of(self.model, each.name, precision) for each in cluster.devices)
        problem = Problem(
            profile, cluster, cluster.num_devices, SAMPLES_A_DEVICE * cluster.num_devices, target="any", space=space,
            effort=Effort(self.seconds), other_profiles=tuple(others),
        )  # fmt: skip
        try:
            return make_plan(problem)
        except (NoPlanFits, UsageError) as error:
            return str(error)

    def row(self) -> Row:
        """Return the answer, the rules beside it, and its next best rungs searched by themselves."""
        found = self.answer(Space())
        row: Row = {"model": self.model, "cluster": self.place, "load": round(os.getloadavg()[0], 1)}
        if isinstance(found, str):
            return {**row, "refused": found}
        search = found.plan.search
        asked = {name: self.step_ns(space) for name, space in rules(CLUSTERS[self.place])}
        thumb = next((name for name, step in asked.items() if step), "")
        return {
            **row,
            "strategy": found.to_json()["strategy"],
            "schedule": found.plan.schedule,
            "recompute": sorted({stage.config.recompute for stage in found.plan.stages}),
            "best_step_time_ns": search.best_step_time_ns,
            "gap": search.gap,
            "rules": {name: step and round(step / search.best_step_time_ns, 4) for name, step in asked.items()},
            "thumb": thumb,
            "next": {
                strategy: step and round(step / search.best_step_time_ns, 4)
                for strategy in next_best(found, 2)
                for step in [self.step_ns(space_of(strategy))]
            },
        }

    def step_ns(self, space: Space) -> int | None:
        """Return the best step of a space; None where it has no plan."""
        found = self.answer(space)
        return None if isinstance(found, str) else found.plan.search.best_step_time_ns


def next_best(found: PlanAnswer, count: int) -> list[str]:
    """Return the strategies of the fastest rungs that fit, but for the one that was chosen."""
    chosen = found.to_json()["strategy"]
    rungs = sorted((each for each in found.plan.rungs if not each.over_memory_bytes), key=lambda e: e.step_time_ns)
    return list(dict.fromkeys(each.strategy for each in rungs if each.strategy != chosen))[:count]


def lost(row: Row) -> Iterator[tuple[str, float]]:
    """Yield the rules that lose in a case, each with its step over the best."""
    for name, ratio in row.get("rules", {}).items():
        if ratio and ratio > NEAR and (name == DATA or not row["rules"][DATA]):
            yield name, ratio


def short(model: str) -> str:
    """Return a model's name for a table."""
    return model.removeprefix("zoo:").removeprefix("benchmarks.advice:")


def text_of(row: Row) -> str:
    """Return a row of a table in Markdown."""
    head = f"| {short(row['model'])} | {row['cluster']} |"
    if "refused" in row:
        return f"{head} nothing fits | | | | | | | {row['refused'].splitlines()[0][:120]} |"
    ratios = [row["rules"].get(name, "") for name in (DATA, ZERO, TENSOR, PIPELINE)]
    cells = ["no" if ratio is None else f"{ratio:.3f}" if ratio else "" for ratio in ratios]
    gap = "" if row["gap"] is None else f"{row['gap']:.1%}"
    again = ", ".join(f"{name} {ratio:.3f}" if ratio else f"{name} no" for name, ratio in row["next"].items())
    how = f"{row['strategy']}, `{row['schedule']}`" if "pipeline" in row["strategy"] else row["strategy"]
    return f"{head} {how} | {row['best_step_time_ns'] / 1e6:.2f} | {gap} | {' | '.join(cells)} | {again} |"


def summary(found: Sequence[Row]) -> Iterator[str]:
    """Yield in how many cases each rule holds, and where it loses."""
    for rule in (DATA, ZERO, TENSOR, PIPELINE):
        tried = [r for r in found if r.get("rules", {}).get(rule) and (rule == DATA or not r["rules"][DATA])]
        losses = [(row, ratio) for row in tried for name, ratio in lost(row) if name == rule]
        yield f"{rule}: holds in {len(tried) - len(losses)} of the {len(tried)} cases in which it applies and fits"
        for row, ratio in sorted(losses, key=lambda each: -each[1]):
            yield f"    {short(row['model'])} on {row['cluster']}: {ratio:.3f} times {row['strategy']}"


def faster(row: Row) -> list[str]:
    """Return the rules and rungs that are more than 1 % faster than the answer."""
    beside = {**row.get("rules", {}), **row.get("next", {})}
    return [name for name, ratio in beside.items() if ratio and ratio < 1 / NEAR]


def draw(found: Sequence[Row], path: str) -> None:
    """Draw each case as a cell: the strategy, coloured by what the thumb's answer takes longer."""
    from simulator.charts import new_figure, save_figure
    from simulator.charts.style import FONT_SIZE

    models, places = (list(dict.fromkeys(row[key] for row in found)) for key in ("model", "cluster"))
    figure, (ax,) = new_figure([0.62 * len(models) + 0.8])
    losses = [[float("nan")] * len(places) for _ in models]
    for row in found:
        y, x = models.index(row["model"]), places.index(row["cluster"])
        ratio = row["rules"].get(row["thumb"]) if "rules" in row else None
        losses[y][x] = min(1.0, max(0.0, ratio - 1)) if ratio else float("nan")
        said = row.get("strategy", "nothing fits").replace("+", " +\n")
        if ratio and ratio > NEAR:
            said += f"\nthumb {ratio - 1:+.0%}"
        elif not ratio and "refused" not in row:
            said += "\nno rule fits"
        ax.text(x, y, said, ha="center", va="center", fontsize=FONT_SIZE - 2)
    ax.imshow(losses, cmap="YlOrRd", vmin=0, vmax=1.5, aspect="auto")
    ax.set_xticks(range(len(places)), places, fontsize=FONT_SIZE)
    ax.set_yticks(range(len(models)), [short(model) for model in models], fontsize=FONT_SIZE)
    ax.set_title(
        "the fastest strategy, and what the first rule of thumb that fits takes longer", fontsize=FONT_SIZE + 1
    )
    save_figure(figure, path)


def main() -> int:
    """Print the table and where rules lose; exit 1 where an answer is beaten."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases 'model on cluster' that match")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each search (5)")
    parser.add_argument("--chart", metavar="F", help="draw the answers (.png, .svg or .pdf)")
    add_output(parser)
    args = parser.parse_args()
    cases = [Case(model, place, args.seconds) for model in MODELS for place in CLUSTERS]
    chosen = [case for case in cases if re.search(args.only, f"{case.model} on {case.place}")]
    found = []
    print("| model | cluster | answer | ms | gap | data | ZeRO | tensor | pipeline | next rungs, searched alone |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in kept((case.row() for case in chosen), args.output):
        found.append(row)
        print(text_of(row), flush=True)
    print(*summary(found), sep="\n")
    beaten = [f"{row['model']} on {row['cluster']}: {', '.join(faster(row))}" for row in found if faster(row)]
    print(*beaten, f"{len(beaten)} answers that a rule or a rung beats by more than 1 %", sep="\n")
    if args.chart:
        draw(found, args.chart)
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
