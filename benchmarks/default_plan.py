"""The plan without flags against every plan with fixed choices: no flag may beat it, and every bound must hold.

    python -m benchmarks.default_plan -o out/default.jsonl [--only REGEX] [--workers 2] [--points 24] [--smoke]

A case is a model on so many devices under a target. It is planned without any choice fixed, then with choices fixed:
drawn points of the grid of data, tensor, stages, ZeRO and recompute, the corners that people try first, and each value
that the free search chose, named by itself. Judged is `best_step_time_ns`:

- no fixed choice beats the free search (`beaten_by`);
- a bound holds for every plan within its scope: of the free search for all, of a fixed choice for those that fix at
  least the same (`broken_bounds`); one of one stage a rank, which its scope then says, for plans of one stage a rank;
- a plan whose free search finds nothing to fit is not found by any fixed choice (`found_by_flag`).

Everything is planned in this process through the library, the searches without flags with the time limit that the
command has by default. That naming a chosen value costs nothing is a property test (`tests/properties/naming.py`): it
needs equal work on both sides, not a clock.
Rows are kept at once; cases that the output already holds are passed over. Leaves out pins and chunks.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from random import Random

from benchmarks.sweep.choices import divisors
from costmodel.architectures.command import DEFAULT_DEVICE, make
from costmodel.errors import NoPlanFits, UsageError
from planner import Effort, Plan, PlanAnswer, Problem, Profile, Space, make_plan

CAPTURED = ("zoo:mmt", "zoo:uno:small", "zoo:gpt", "zoo:clip:small", "zoo:vlm:small", "zoo:dlrm", "zoo:t5:small",
            "zoo:vit", "zoo:unet3d", "zoo:moe:small", "zoo:resnet50")  # fmt: skip
GENERATED = ("random:30:1", "random:200:2", "nasnet")
DESCRIBED = ("llama3-8b", "llama3-70b", "qwen3-30b-a3b", "mixtral-8x7b", "clip-vit-l-14", "llama3.2-11b-vision")
"""Models without a module, which the executor cannot run: they are planned for any target alone."""
DEVICES = (4, 8, 64)
SAMPLES_A_DEVICE = 8
SIZES = (1, 2, 4, 8)
"""Micro-batch sizes of the profiles."""
ONE_A_RANK = "; one stage a rank"
"""What a scope says where the bound leaves out several stages a rank."""
RECOMPUTES = ("none", "selective", "full")

Fixed = Mapping[str, object]
"""Names and values of fixed choices, as `Space` has them, with ``microbatch_size``."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question without flags."""

    model: str
    devices: int
    target: str

    def __str__(self) -> str:
        return f"{self.model} on {self.devices} for {self.target}"


@dataclass(frozen=True, slots=True)
class Found:
    """What one search came to: no plan where `refused` says why.

    `whole_alone` is whether the bound leaves out several stages a rank, `looped` whether the plan has them.
    """

    fixed: Fixed
    best_ns: int | None
    step_ns: int | None
    bound_ns: int | None
    seconds: float
    refused: str = ""
    whole_alone: bool = False
    looped: bool = False

    def __str__(self) -> str:
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.fixed.items())


@dataclass(frozen=True, slots=True)
class Work:
    """How much is tried: points drawn of each grid and what each search may take."""

    points: int
    effort: Effort
    effort_fixed: Effort


def cases() -> Iterator[Case]:
    """Yield all cases, those of a model one after the other."""
    for model in (*CAPTURED, *GENERATED, *DESCRIBED):
        targets = ("any",) if model in DESCRIBED else ("executor", "any")
        yield from (Case(model, devices, target) for devices, target in product(DEVICES, targets))


def grid(devices: int) -> list[Fixed]:
    """Return all ways to use all devices by data, tensor and stages, with each ZeRO stage and recompute."""
    found: list[Fixed] = []
    for data, tensor in product(divisors(devices), repeat=2):
        if devices % (data * tensor):
            continue
        for zero, recompute in product(range(4) if data > 1 else (0,), RECOMPUTES):
            stages = devices // (data * tensor)
            found.append({"data": data, "tensor": tensor, "stages": stages, "zero": zero, "recompute": recompute})
    return found


def corners(devices: int) -> list[Fixed]:
    """Return the choices that people try first."""
    return [
        {"data": devices},
        {"data": devices, "zero": 1},
        {"data": devices, "zero": 3},
        {"tensor": min(devices, 8)},
        {"stages": devices},
        {"stages": 2},
        {"stages": devices // 2, "data": 2},
        {"recompute": "full"},
        {"recompute": "none", "zero": 0},
    ]


def chosen(plan: Plan) -> Iterator[Fixed]:
    """Yield each value that a plan's stages agree on, by itself, and all of them together."""
    configs = {stage.config for stage in plan.stages}
    places = len({stage.ranks for stage in plan.stages})
    values: dict[str, object] = {"stages": places, "microbatch_size": plan.batch.microbatch_size}
    for name in ("data", "tensor", "context", "expert", "zero", "recompute", "offload"):
        found = {getattr(config, name) for config in configs}
        if len(found) == 1:
            values[name] = found.pop()
    if values.get("zero") == 0 and values.get("data") == 1:
        del values["zero"]
    yield from ({name: value} for name, value in values.items())
    yield values


@lru_cache(maxsize=2)
def profile_of(model: str, device: str = DEFAULT_DEVICE) -> Profile:
    """Return the profile of a model, in bf16, or fp16 where the device has none."""
    try:
        return make(model, device, SIZES)[0]
    except UsageError:
        return make(model, device, SIZES, precision="fp16")[0]


def search(case: Case, fixed: Fixed, effort: Effort) -> tuple[Found, PlanAnswer | None]:
    """Plan with choices fixed."""
    profile = profile_of(case.model)
    begin = time.perf_counter()
    space = {field.name: fixed.get(field.name) for field in fields(Space)}
    size = fixed.get("microbatch_size")
    try:
        answer = make_plan(
            Problem(
                profile,
                None,
                case.devices,
                SAMPLES_A_DEVICE * case.devices,
                microbatch_size=size if isinstance(size, int) else None,
                space=Space(**space),  # type: ignore[arg-type]
                target=case.target,
                effort=effort,
            )
        )
    except (NoPlanFits, UsageError) as refused:
        return Found(fixed, None, None, None, time.perf_counter() - begin, str(refused)), None
    found, seconds = answer.plan.search, time.perf_counter() - begin
    looped = len({stage.ranks for stage in answer.plan.stages}) < len(answer.plan.stages)
    alone = ONE_A_RANK in found.scope
    return Found(
        fixed, found.best_step_time_ns, found.objective, found.lower_bound_ns, seconds, whole_alone=alone, looped=looped
    ), answer


def judge(case: Case, work: Work) -> dict[str, object]:
    """Plan a case without and with flags; return its row."""
    free, answer = search(case, {}, work.effort)
    dice = Random(str(case))  # noqa: S311 - no secrets here
    points = grid(case.devices)
    drawn = [*corners(case.devices), *dice.sample(points, min(work.points, len(points)))]
    named = list(chosen(answer.plan)) if answer else []
    tried = [search(case, fixed, work.effort_fixed)[0] for fixed in (*drawn, *named)]
    every = [free, *tried]
    best = min((each for each in every if each.best_ns), key=lambda each: each.best_ns or 0, default=free)
    row = {
        "case": str(case),
        "strategy": answer.to_json()["strategy"] if answer else None,
        "best_step_time_ns": free.best_ns,
        "step_time_ns": free.step_ns,
        "lower_bound_ns": free.bound_ns,
        "least_of_all_ns": best.best_ns,
        "least_is": str(best),
        "seconds": free.seconds,
        "most_seconds": max(each.seconds for each in every),
        "tried": len(every) - 1,
        "refused": sum(not each.best_ns for each in every[1:]),
        "refusal": free.refused,
    }
    return row | judgements(free, tried)


def judgements(free: Found, tried: Sequence[Found]) -> dict[str, list[str]]:
    """Return what breaks a promise, in words."""
    known = [(each, each.best_ns) for each in tried if each.best_ns]
    if free.best_ns is None:
        return {"found_by_flag": [f"{each}: {best_ns} ns" for each, best_ns in known]}
    return {
        "beaten_by": [
            f"{each}: {best_ns} ns, {best_ns / free.best_ns - 1:+.3%}"
            for each, best_ns in known
            if best_ns < free.best_ns
        ],
        "broken_bounds": list(_broken([free, *tried])),
    }


def _broken(every: Sequence[Found]) -> Iterator[str]:
    """Yield the bounds above a plan that fixes the same and perhaps more."""
    for wide, narrow in product(every, repeat=2):
        inside = wide.fixed.items() <= narrow.fixed.items() and not (wide.whole_alone and narrow.looped)
        step_ns = narrow.step_ns if wide.whole_alone else narrow.best_ns  # the chosen plan, of which more is known
        if inside and wide.bound_ns and step_ns and wide.bound_ns > step_ns:
            yield f"[{wide}] bound {wide.bound_ns} ns, [{narrow}] {step_ns} ns: {wide.bound_ns / step_ns - 1:+.3%}"


BROKEN = ("beaten_by", "broken_bounds", "found_by_flag")
"""What must stay empty."""


def _judge(job: tuple[Case, Work]) -> dict[str, object]:
    return judge(*job)


def run(todo: Sequence[Case], work: Work, workers: int) -> Iterator[dict[str, object]]:
    """Yield the rows of cases as they are done."""
    jobs = [(case, work) for case in todo]
    if workers == 1:
        yield from map(_judge, jobs)
        return
    with Pool(workers) as pool:
        yield from pool.imap_unordered(_judge, jobs)


def done_before(path: Path | None) -> list[dict[str, object]]:
    """Return the rows that a file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def print_row(row: Mapping[str, object]) -> None:
    """Print a row for people, and below it whatever breaks a promise."""
    best, least = row["best_step_time_ns"], row["least_of_all_ns"]
    times = f"{best / 1e6:12.3f} ms" if isinstance(best, int) else f"{'nothing fits':>15}"
    over = f"{best / least - 1:+8.3%}" if isinstance(best, int) and isinstance(least, int) else f"{'-':>8}"
    print(
        f"{row['case']:<40} {row['strategy'] or '-':<34} {times} {over}  "
        f"{row['tried']} tried, {row['refused']} refused, {row['seconds']:.1f} s, at most {row['most_seconds']:.1f} s",
        flush=True,
    )
    for name in BROKEN:
        lines = row.get(name)
        for line in lines if isinstance(lines, list) else ():
            print(f"    {name}: {line}", flush=True)


def summary(rows: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Count the cases that break each promise."""
    known = list(rows)
    counts = {name: sum(bool(row.get(name)) for row in known) for name in BROKEN}
    return {"cases": len(known), "planned": sum(bool(row["best_step_time_ns"]) for row in known), **counts}


def main() -> int:
    """Judge the cases; exit 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, metavar="F", help="rows as JSON lines; those there are kept")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases such as 'zoo:gpt on 8 for any'")
    parser.add_argument("--points", type=int, default=16, help="drawn points of each grid")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=10.0, help="of each search without flags")
    parser.add_argument("--fixed-time-limit", type=float, default=2.0, help="of each search with fixed choices")
    parser.add_argument("--deterministic-limit", type=float, help="of every search, in place of the clock")
    parser.add_argument("--smoke", action="store_true", help="one small case with two points of the grid")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    exact = args.deterministic_limit
    work = Work(args.points, Effort(args.time_limit, exact), Effort(args.fixed_time_limit, exact))
    todo = [case for case in cases() if re.search(args.only, str(case))]
    if args.smoke:
        work = Work(2, Effort(0.3), Effort(0.3))
        todo = [Case("random:12:3", 4, "executor")]
    rows = [row for row in done_before(args.output) if row["case"] in {str(case) for case in todo}]
    known = {row["case"] for row in rows}
    for row in run([case for case in todo if str(case) not in known], work, args.workers):
        rows.append(row)
        if args.output:
            with args.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if not args.json:
            print_row(row)
    counts = summary(rows)
    print(json.dumps({**counts, "rows": rows} if args.json else counts))
    return 1 if any(counts[name] for name in BROKEN) else 0


if __name__ == "__main__":
    sys.exit(main())
