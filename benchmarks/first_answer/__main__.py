"""What ``penstock plan`` answers after 1 to 60 seconds, beside what an expert would type.

    python -m benchmarks.first_answer [--only REGEX] [--limits 1,2,5,10,20,60] [--busy N] [--cold] [-o FILE.jsonl]

Each row is one case (`benchmarks.first_answer.cases`) under one time limit, a whole command in a fresh process, judged
on `best_step_time_ns`. At limits of 5 and 10 s (four cases: at 2 s, too) eight commands with every degree fixed are
asked under the same limit. With ``--busy N`` so many processes compute meanwhile; with ``--cold`` no kernel is compiled
beforehand and nothing is cached. Rows are kept at once, and those in the file already are not asked again. The summary
at the end says in how many cases each promise holds; exit 1 where one is broken. Leaves out how good a best answer is
(`benchmarks.gaps`, `benchmarks.rivals`).
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.first_answer.cases import AT_TWO_SECONDS, BESIDE_OTHERS, CASES, Case
from benchmarks.first_answer.judged import allowed_cpu_s, summary
from benchmarks.support.kept_rows import add_output, kept, read_rows
from costmodel.model.profile import read_profile

LIMITS = (1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
FIXED_AT, FIXED_AT_TWO = (5.0, 10.0), 2.0
COUNTED = ("--deterministic-limit", "0.02", "--time-limit", "300")
"""Flags of the smoke run, whose answers no clock ends."""
DISTURBED = 0.1
"""Part of the cores that other processes may use before a row says so."""
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**6))\n"
"""A process that computes until the benchmark is gone."""
Row = dict[str, Any]


class Asking:
    """Commands about one case, whose files stand in a folder of its own."""

    def __init__(self, case: Case, folder: Path, *, cold: bool = False, counted: bool = False) -> None:
        self.case, self.folder, self.cold, self.counted = case, folder, cold, counted
        self.profiles: list[str] = []
        for number, device in enumerate(case.catalogue_ids):
            path = str(folder / f"profile{number}.json")
            sizes = ["--microbatch-sizes", "1,2,4,8"]
            sequence = ["--sequence", str(case.sequence)] if case.sequence else []
            answer = self._penstock("model", case.model, "--device", device, *sizes, *sequence, "-o", path)
            if "error" in answer:
                raise RuntimeError(f"{case.name} has no profile: {answer['error']}")
            self.profiles.append(path)
        self.cluster: list[str] = []
        if text := case.cluster_text():
            (folder / "cluster.toml").write_text(text, encoding="utf-8")
            self.cluster = ["--cluster", str(folder / "cluster.toml")]

    def plan(self, limit_s: float, *flags: str) -> Row:
        """Return the JSON object that the command answers with."""
        effort = COUNTED if self.counted else ("--time-limit", f"{limit_s:g}")
        asked = ["--devices", str(self.case.devices), "--batch", str(self.case.batch), *self.cluster, *effort]
        return self._penstock("plan", *self.profiles, *asked, *flags, "-o", str(self.folder / "plan.json"))

    def row(self, limit_s: float, fixed: Sequence[str]) -> Row:
        """Return one row: the open question, and the fixed commands with the target that it had by default."""
        before, start, machine = _children_cpu_s(), time.perf_counter(), machine_cpu_s()
        answer = self.plan(limit_s)
        wall_s, cpu_s, all_s = time.perf_counter() - start, _children_cpu_s() - before, machine_cpu_s() - machine
        searched = answer.get("searched", {})
        names = ("strategy", "schedule", "step_time_ns", "best_step_time_ns", "limited_by", "error", "exit")
        first = ("first_plan_s", "first_plan_cpu_s", "first_plan_ns", "families", "families_seen", "only_fits")
        target = ["--target", self._target()]
        commands = {flags: self.plan(limit_s, *target, *flags.split()) for flags in fixed}
        return {
            "case": self.case.name,
            "model": self.case.model,
            "devices": self.case.devices,
            "limit_s": limit_s,
            **{name: searched.get(name) for name in first},
            "in_time_ns": in_time_ns(searched, allowed_cpu_s(self.case.devices)),
            **{name: answer[name] for name in names if name in answer},
            "alarms": [each["kind"] for each in answer.get("alarms", [])],
            "fixed": {flags: found.get("best_step_time_ns") for flags, found in commands.items()},
            "refused": {flags: found["error"][:160] for flags, found in commands.items() if "error" in found},
            "wall_s": round(wall_s, 2),
            "cpu_s": round(cpu_s, 2),
            "others_cpu_s": round(max(0.0, all_s - cpu_s), 2),
            "load": round(os.getloadavg()[0], 1),
        }

    def _target(self) -> str:
        """Return the target of a question that names none (`planner.question.targets.default_target`)."""
        return "any" if read_profile(self.profiles[0]).origin.plan_only else "executor"

    def _penstock(self, *words: str) -> Row:
        environment = dict(os.environ)
        if self.cold:
            with TemporaryDirectory(dir=self.folder) as empty:
                return _answer(words, environment | {"NUMBA_CACHE_DIR": empty, "XDG_CACHE_HOME": empty})
        return _answer(words, environment)


def _answer(words: Sequence[str], environment: dict[str, str]) -> Row:
    command = [sys.executable, "-m", "planner", *words, "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    try:
        found = json.loads(told.stdout)
    except json.JSONDecodeError:
        return {"error": told.stderr.strip()[-300:] or "nothing was answered", "exit": told.returncode}
    return {**found, "exit": told.returncode} if isinstance(found, dict) else {"error": told.stdout[:300]}


def in_time_ns(searched: Row, allowed_s: float) -> int | None:
    """Return the best step of the plans that were found within so many CPU seconds; None where none was."""
    return min(
        (each["best_step_time_ns"] for each in searched.get("incumbents", ()) if each["cpu_s"] <= allowed_s),
        default=None,
    )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def machine_cpu_s() -> float:
    """Return the CPU seconds that all processes of the machine have used; 0 where it does not say."""
    with suppress(OSError, ValueError):
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, *rest = map(int, words)
        return (user + nice + system + sum(rest[:2])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Have so many processes compute in here; they are ended whatever happens."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        started += [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
        yield
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.wait()


def rows(
    cases: Sequence[Case], limits: Sequence[float], known: Sequence[Row], args: argparse.Namespace
) -> Iterator[Row]:
    """Yield the rows that are not known yet, case by case, the shortest limit first."""
    done = {key_of(row) for row in known}
    for case in cases:
        left = [limit_s for limit_s in limits if (case.name, limit_s, args.busy, args.cold) not in done]
        if not left:
            continue
        with TemporaryDirectory() as folder:
            asking = Asking(case, Path(folder), cold=args.cold, counted=args.smoke)
            for limit_s in left:
                with busy(args.busy):
                    row = asking.row(limit_s, fixed_at(case, limit_s, args))
                yield {**row, "busy": args.busy, "cold": args.cold}


def fixed_at(case: Case, limit_s: float, args: argparse.Namespace) -> list[str]:
    """Return the fixed commands of a row; beside busy processes the quiet answer is what a row is held against."""
    if args.smoke:
        return case.fixed[:2]
    asked = limit_s in FIXED_AT or (limit_s == FIXED_AT_TWO and case.name in AT_TWO_SECONDS)
    return case.fixed if asked and not args.busy else []


def key_of(row: Row) -> tuple[str, float, int, bool]:
    """Return what tells a row from others of the same file."""
    return row["case"], row["limit_s"], row["busy"], row["cold"]


def text_of(row: Row) -> str:
    """Return a row for people."""
    best_ns, first_cpu_s = row.get("best_step_time_ns"), row["first_plan_cpu_s"]
    beaten = [flags for flags, ns in row["fixed"].items() if ns and best_ns and ns < best_ns]
    cores = (os.cpu_count() or 1) * row["wall_s"]
    disturbed = not row["busy"] and row["others_cpu_s"] > DISTURBED * cores
    parts = (
        f"{row['case']:32} {row['limit_s']:4g} s",
        f"{best_ns / 1e6:12.2f} ms" if best_ns else f"exit {row.get('exit')}: {row.get('error', '')[:60]}",
        f"first {row['first_plan_ns'] / 1e6:.2f} ms at {first_cpu_s:.2f} CPU s" if row["first_plan_ns"] else "",
        f"wall {row['wall_s']:.1f} s, {row['cpu_s']:.1f} CPU s, load {row['load']}",
        f"{len(beaten)} of {len(row['fixed'])} fixed are faster" if row["fixed"] else "",
        ", ".join(row["alarms"]),
        f"OTHER PROCESSES used {row['others_cpu_s']:.1f} CPU s meanwhile" if disturbed else "",
    )
    return "; ".join(filter(None, parts))


def main(words: Sequence[str] | None = None) -> int:
    """Ask, print the rows and the summary; exit 1 where a promise is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_answer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="cases 'model on devices, place' that match")
    parser.add_argument("--limits", default=",".join(f"{each:g}" for each in LIMITS), metavar="S,...")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="processes that compute meanwhile (six cases, without --only)"
    )
    parser.add_argument("--cold", action="store_true", help="without compiled kernels and caches")
    parser.add_argument(
        "--smoke", action="store_true", help="one small case under counted work, with two fixed commands"
    )
    add_output(parser)
    args = parser.parse_args(words)
    limits = sorted(float(each) for each in args.limits.split(","))
    named = [case for case in CASES if re.search(args.only, case.name)]
    chosen = [case for case in named if case.name in BESIDE_OTHERS] if args.busy and not args.only else named
    if args.smoke:
        chosen, limits = [Case("random:12:3", 4, 32)], limits[:1]
    found = read_rows(args.output)
    print(f"{len(chosen)} cases, {len(found)} rows known, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for row in kept(rows(chosen, limits, found, args), args.output):
        found.append(row)
        print(text_of(row), flush=True)
    names = {case.name for case in chosen}
    lines, broken = summary([row for row in found if row["case"] in names])
    print(*lines, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
