"""Which strategy for which model on which machines, and where the usual rules of thumb lose.

    python -m benchmarks.advice [--only REGEX] [--seconds 10] [-o FILE.jsonl] [--chart F]

Each case is a model on a cluster. It is planned with everything open (any target, 8 samples a device), then as each
rule of thumb would have it, and each answer is asked again: the two next best rungs of its ladder are searched by
themselves. What leaves less open gets half the seconds. Rules, with the case in which each is said to hold:

- data parallel where it fits: replicas alone on several devices, nothing run again;
- ZeRO before tensor, where data parallel does not fit: replicas of the best ZeRO stage, with or without recompute;
- tensor inside a host, where data parallel does not fit: a host's devices divide the operators, replicas across hosts;
- pipeline across hosts, where data parallel does not fit: a host's devices divide the operators, and of 2, 4, ...
  stages the fewest that fit.

A rule loses where it fits and takes more than 1 % longer than the answer. The thumb's answer is the first rule that
fits. Times are roofline estimates of catalogue devices. Exit 1 where a rule or a rung is more than 1 % faster than all
that the open search met. Leaves out price, and what a trainer can run (`--target any`). Where no layers of a model
divide in pairs, as in networks of convolutions, tensor degrees are "not priced".
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

from benchmarks.mixed import A100, V100
from benchmarks.mixed import cluster_of as mixed_cluster
from benchmarks.support.kept_rows import add_output, kept
from costmodel.architectures.captured import captured_profile
from costmodel.architectures.command import make
from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import LinkGroup
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


def rules(cluster: Cluster) -> dict[str, list[Space]]:
    """Return what each rule of thumb fixes, in the order in which they are tried; of several the first that fits."""
    devices, host = cluster.num_devices, cluster.hosts[0].devices
    whole = Space(stages=1, context=1, expert=1, offload="none")
    if devices == 1:
        return {}
    found = {
        DATA: [replace(whole, data=devices, tensor=1, zero=0, recompute="none")],
        ZERO: [replace(whole, data=devices, tensor=1)],
        TENSOR: [replace(whole, tensor=host)],
    }
    stages = [2**i for i in range(1, (devices // host).bit_length())]
    return {**found, PIPELINE: [replace(whole, tensor=host, stages=count) for count in stages]} if stages else found


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
    """A model on a cluster, and the time limit of the open search in seconds."""

    model: str
    place: str
    seconds: float

    def answer(self, space: Space) -> PlanAnswer | str:
        """Return the best plan of a space, or why there is none.

        Raises
        ------
        UsageError
            Where it is not priced.
        """
        cluster = CLUSTERS[self.place]
        precision = "bf16" if len(cluster.devices) == 1 else "fp16"  # V100 have no bf16
        profile, *others = (profile_of(self.model, each.name, precision) for each in cluster.devices)
        seconds = self.seconds if space == Space() else self.seconds / 2
        problem = Problem(
            profile, cluster, cluster.num_devices, SAMPLES_A_DEVICE * cluster.num_devices, target="any", space=space,
            effort=Effort(seconds), other_profiles=tuple(others),
        )  # fmt: skip
        try:
            return make_plan(problem)
        except NoPlanFits as error:
            return str(error)

    def row(self) -> Row:
        """Return the answer, the rules beside it, and its next best rungs searched by themselves.

        `rules` holds each one's step over the answer's, or why it has none; `next` that of each rung and the strategy
        that was found for it, which may be another one.
        """
        row: Row = {"model": self.model, "cluster": self.place, "seconds": self.seconds}
        row["load"] = round(os.getloadavg()[0], 1)
        found = self.answer(Space())
        if isinstance(found, str):
            return {**row, "refused": found}
        step_ns, search = found.plan.prediction.step_time_ns, found.plan.search
        asked = {name: self.first(spaces) for name, spaces in rules(CLUSTERS[self.place]).items()}
        rungs = {name: self.first([space_of(name)]) for name in next_best(found, 2)}
        return {
            **row,
            "strategy": found.to_json()["strategy"],
            "schedule": found.plan.schedule,
            "step_time_ns": step_ns,
            "best_over": search.best_step_time_ns / step_ns,
            "gap": search.gap,
            "rules": {name: each if isinstance(each, str) else over(each, step_ns) for name, each in asked.items()},
            "next": {
                name: each if isinstance(each, str) else [over(each, step_ns), each.to_json()["strategy"]]
                for name, each in rungs.items()
            },
        }

    def first(self, spaces: Sequence[Space]) -> PlanAnswer | str:
        """Return the answer of the first space that has one, or why there is none."""
        try:
            answers = map(self.answer, spaces)
            return next((each for each in answers if not isinstance(each, str)), "no")
        except UsageError:
            return "not priced"


def over(found: PlanAnswer, step_ns: int) -> float:
    """Return the best step that an answer's search met over another one's."""
    return round(found.plan.search.best_step_time_ns / step_ns, 4)


def next_best(found: PlanAnswer, count: int) -> list[str]:
    """Return the strategies of the fastest rungs that fit, but for the one that was chosen."""
    chosen = found.to_json()["strategy"]
    rungs = sorted((each for each in found.plan.rungs if not each.over_memory_bytes), key=lambda e: e.step_time_ns)
    return list(dict.fromkeys(each.strategy for each in rungs if each.strategy != chosen))[:count]


def applies(row: Row, rule: str) -> bool:
    """Whether a rule has a plan in a case in which it is said to hold."""
    known = row.get("rules", {})
    return isinstance(known.get(rule), float) and (rule == DATA or not isinstance(known[DATA], float))


def thumb(row: Row) -> float | None:
    """Return the step of the first rule that fits over the answer's; None where none does."""
    return next((ratio for ratio in row.get("rules", {}).values() if isinstance(ratio, float)), None)


def short(model: str) -> str:
    """Return a model's name for a table."""
    return model.removeprefix("zoo:").removeprefix("benchmarks.advice:")


def text_of(row: Row) -> str:
    """Return a row of a table in Markdown."""
    head = f"| {short(row['model'])} | {row['cluster']} |"
    if "refused" in row:
        return f"{head} nothing fits | | | | | | | |"
    cells = [row["rules"].get(name, "") for name in (DATA, ZERO, TENSOR, PIPELINE)]
    shown = " | ".join(f"{each:.3f}" if isinstance(each, float) else str(each) for each in cells)
    gap = "" if row["gap"] is None else f"{row['gap']:.1%}"
    how = f"{row['strategy']}, `{row['schedule']}`" if "pipeline" in row["strategy"] else row["strategy"]
    again = ", ".join(map(_rung, row["next"].items()))
    return f"{head} {how} | {row['step_time_ns'] / 1e6:.2f} | {gap} | {shown} | {again} |"


def _rung(item: tuple[str, list[Any] | str]) -> str:
    name, found = item
    if isinstance(found, str):
        return f"{name} {found}"
    ratio, strategy = found
    return f"{name} {ratio:.3f}" if strategy == name else f"{name} {ratio:.3f} ({strategy})"


def summary(found: Sequence[Row]) -> Iterator[str]:
    """Yield in how many cases each rule holds, and where it loses."""
    for rule in (DATA, ZERO, TENSOR, PIPELINE):
        tried = [row for row in found if applies(row, rule)]
        losses = [row for row in tried if row["rules"][rule] > NEAR]
        held = len(tried) - len(losses)
        yield f"{rule}: within 1 % of the answer in {held} of the {len(tried)} cases in which it applies and fits"
        for row in sorted(losses, key=lambda row: -float(row["rules"][rule])):
            ratio, where = row["rules"][rule], f"{short(row['model'])} on {row['cluster']}"
            yield f"    {where}: takes {ratio:.3f} times as long as {row['strategy']}"


def faster(row: Row) -> list[str]:
    """Return the rules and rungs that are more than 1 % faster than all that the open search met."""
    rungs = {name: each[0] for name, each in row.get("next", {}).items() if not isinstance(each, str)}
    beside = {name: each for name, each in row.get("rules", {}).items() if isinstance(each, float)} | rungs
    return [name for name, ratio in beside.items() if ratio * NEAR < row["best_over"]]


def draw(found: Sequence[Row], path: str) -> None:
    """Draw each case as a cell: the strategy, coloured by what the thumb's answer takes longer, up to twice as long."""
    from simulator.charts import new_figure, save_figure
    from simulator.charts.style import FONT_SIZE

    models, places = (list(dict.fromkeys(row[key] for row in found)) for key in ("model", "cluster"))
    figure, (ax,) = new_figure([0.62 * len(models) + 0.8])
    losses = [[float("nan")] * len(places) for _ in models]
    for row in found:
        y, x = models.index(row["model"]), places.index(row["cluster"])
        ratio = thumb(row)
        losses[y][x] = min(1.0, max(0.0, ratio - 1)) if ratio else float("nan")
        said = row.get("strategy", "nothing fits").replace("+", " +\n")
        if ratio and ratio > NEAR:
            said += f"\nthumb x {ratio:.3g}"
        elif not ratio and row.get("rules"):
            said += "\nno rule fits"
        ax.text(x, y, said, ha="center", va="center", fontsize=FONT_SIZE - 2)
    ax.imshow(losses, cmap="YlOrRd", vmin=0, vmax=2.0, aspect="auto")
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
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of the open search (10)")
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
