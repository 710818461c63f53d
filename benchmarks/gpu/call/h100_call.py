"""The parent: starts one process a model, lets them capture side by side, then gives each the device in turn.

Standard library alone. A child that fails, hangs or is killed loses nothing but its own rest: rows are JSON lines that
it appends at once, and after every step all of them are packed again into at most 8 files under --out.
"""

import argparse
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
START = time.perf_counter()
# model -> seconds for each of its passes: (profile, whole), (kernels, one stage), (stages, parts)
MAIN = {
    "llama3": (95, 45, 75),
    "mmt": (60, 40, 40),
    "unet3d": (75, 30, 40),
    "dlrm": (50, 25, 0),
    "yolo": (60, 30, 0),
    "uno": (45, 25, 0),
    "moe": (90, 0, 0),
}
SMOKE = {"llama3": (60, 60, 60), "mmt": (60, 60, 60), "dlrm": (60, 60, 0), "moe": (60, 0, 0), "unet3d": (60, 60, 0)}
PASSES = ("profile,whole", "kernels,one_stage", "stages,parts")
READY_S = 90.0
LIMIT_BYTES = 15 * 2**20


class Child:
    """A process with a log of its own."""

    def __init__(self, name: str, words: list[str], work: Path, env: dict[str, str] | None = None) -> None:
        self.name, self.began, self.seconds, self.state = name, time.perf_counter(), 0.0, "running"
        self.log = open(work / "logs" / f"{name}.txt", "ab")
        self.process = subprocess.Popen(
            words,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )

    def ended(self) -> bool:
        code = self.process.poll()
        if code is not None and self.state == "running":
            self.state, self.seconds = ("ok" if code == 0 else f"exit {code}"), time.perf_counter() - self.began
        return code is not None

    def wait(self, seconds: float) -> str:
        end = time.perf_counter() + seconds
        while not self.ended() and time.perf_counter() < end:
            time.sleep(0.02)
        if not self.ended():
            self.kill(f"killed after {seconds:.0f} s")
        return self.state

    def kill(self, why: str) -> None:
        if self.ended():
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(3)
                break
            except subprocess.TimeoutExpired:
                continue
        self.state, self.seconds = why, time.perf_counter() - self.began


class Call:
    """All steps of one call."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out, self.work = args, Path(args.out), Path(args.out).parent / f"h100-work-{args.plan}"
        if os.environ.get("H100_WORK"):
            self.work = Path(os.environ["H100_WORK"])
        for name in ("logs", "rows", "go", "done", "profiles", "traces", "files"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        for name in ("go", "done"):
            for path in (self.work / name).iterdir():
                path.unlink()
        self.steps: list[dict[str, object]] = []

    def left(self) -> float:
        return self.args.seconds - (time.perf_counter() - START) - 6

    def step(self, *words: str) -> list[str]:
        common = ["--device", self.args.device, "--work", str(self.work), "--plan", self.args.plan]
        return [sys.executable, str(HERE / "h100_step.py"), *words, *common]

    def note(self, name: str, state: str, seconds: float) -> None:
        at = time.perf_counter() - START
        self.steps.append({"step": name, "state": state, "seconds": round(seconds, 1), "at_s": round(at, 1)})
        print(f"[{at:6.1f} s] {name}: {state}, {seconds:.1f} s", flush=True)
        self.pack()

    def alone(self, name: str, box: float, *words: str, env: dict[str, str] | None = None) -> None:
        if self.left() < min(15, box):
            self.note(name, "no time left", 0)
            return
        child = Child(name, self.step(*words), self.work, env)
        child.wait(min(box, self.left()))
        self.note(name, child.state, child.seconds)

    def models(self, chosen: dict[str, tuple[int, ...]], together: int) -> None:
        """Smoke: let `together` models at a time run all they have. Main: each alone, while the next one captures."""
        children: dict[str, Child] = {}
        if self.args.plan == "smoke":
            waiting = list(chosen)
            while self.left() > 20 and (waiting or any(not c.ended() for c in children.values())):
                if waiting and sum(not c.ended() for c in children.values()) < together:
                    name = waiting.pop(0)
                    children[name] = self._model(name, chosen[name])
                    for i in range(3):
                        (self.work / "go" / f"{name}.{i}").touch()
                time.sleep(0.1)
            for name, child in children.items():
                child.wait(max(1.0, self.left()))
                self.note(f"model {name}", child.state, child.seconds)
            return
        beside = self.side_by_side()
        machine = Child("machine", self.step("machine", "machine"), self.work)
        for place, name in enumerate(chosen):
            # The next one captures meanwhile, and no more: on the first call seven models at once filled the memory.
            for other in list(chosen)[place : place + 2]:
                if other not in children and self.left() > 30:
                    children[other] = self._model(other, chosen[other])
            if name not in children:
                self.note(name, "no time left", 0)
                continue
            self._await_capture(name, children[name])
            if beside:
                self.wait_for(beside, READY_S)
                beside = []
            if machine.state == "running":
                (self.work / "go" / "machine.0").touch()  # its figures are ceilings: nothing else runs on the device
                machine.wait(min(30.0 * (1 if self.args.device == "cuda" else 4), max(1.0, self.left())))
                self.note("machine", machine.state, machine.seconds)
            for number, box in enumerate(chosen[name]):
                if box:
                    self._turn(name, number, children[name], box)
            children[name].wait(5)  # its memory is the device's again before the next one is measured

    def _model(self, name: str, boxes: tuple[int, ...]) -> Child:
        passes = ";".join(PASSES[i] for i, box in enumerate(boxes) if box)
        return Child(name, self.step("model", name, "--passes", passes), self.work)

    def _await_capture(self, name: str, child: Child) -> None:
        end, start = time.perf_counter() + min(READY_S, max(1.0, self.left())), time.perf_counter()
        ready = self.work / "done" / f"{name}.ready"
        while time.perf_counter() < end and not child.ended() and not ready.exists():
            time.sleep(0.05)
        self.note(f"{name}: captured", "ok" if ready.exists() else child.state, time.perf_counter() - start)

    def side_by_side(self) -> list[Child]:
        """Start what asks for exact gradients alone: nothing is timed while models are captured."""
        if self.args.device != "cuda" or self.args.models:
            return []
        return [
            Child(f"ranks over {name}", self.step(what), self.work)
            for name, what in (("gloo", "ranks"), ("nccl", "nccl"))
        ]

    def wait_for(self, children: list[Child], seconds: float) -> None:
        end = time.perf_counter() + seconds
        for child in children:
            child.wait(max(0.1, min(end - time.perf_counter(), self.left())))
            self.note(child.name, child.state, child.seconds)

    def _turn(self, name: str, number: int, child: Child, box: float) -> None:
        label = f"{name}: {PASSES[number]}"
        if child.ended():
            if child.state != "ok":
                self.note(label, f"gone ({child.state})", 0)
            return
        if self.left() < 10:
            self.note(label, "no time left", 0)
            return
        start, box = time.perf_counter(), min(box * (1 if self.args.device == "cuda" else 8), self.left())
        (self.work / "go" / f"{name}.{number}").touch()
        done = self.work / "done" / f"{name}.{number}"
        while time.perf_counter() - start < box and not done.exists() and not child.ended():
            time.sleep(0.02)
        if done.exists():
            self.note(label, "done", time.perf_counter() - start)
        elif child.ended():
            self.note(label, child.state, time.perf_counter() - start)
        else:
            child.kill(f"killed after {box:.0f} s in {label}")
            self.note(label, child.state, time.perf_counter() - start)

    def rows(self) -> list[dict[str, object]]:
        found = []
        for path in sorted((self.work / "rows").glob("*.jsonl")):
            for line in path.read_text(errors="replace").splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:  # the process was killed in the middle of it
                    continue
        return found

    def pack(self) -> None:
        """Write everything there is under --out, each file below the limit on what comes back."""
        self.out.mkdir(parents=True, exist_ok=True)
        rows = self.rows()
        body = {
            "plan": self.args.plan,
            "device": self.args.device,
            "seconds": round(time.perf_counter() - START, 1),
            "steps": self.steps,
            "rows": rows,
        }
        _write(self.out / "rows.json", json.dumps(body, indent=1).encode())
        _write(self.out / "logs.tar.gz", _tar(sorted((self.work / "logs").glob("*"))))
        _write(self.out / "profiles.tar", _tar(sorted((self.work / "profiles").glob("*.json.gz*")), ""))  # the journal of one that broke off, too
        _write(self.out / "traces.tar", _tar(sorted((self.work / "traces").glob("*")), ""))
        _write(self.out / "files.tar.gz", _tar(sorted(p for p in (self.work / "files").rglob("*") if p.is_file())))

    def summary(self) -> None:
        """Print what fits a screen, the errors last but one, the advice last."""
        rows = self.rows()
        print("\nSUMMARY", self.args.plan, self.args.device)
        for row in rows:
            if "error" not in row:
                values = "  ".join(
                    f"{k} {v}" for k, v in row["row"].items() if not isinstance(v, dict | list) or len(str(v)) < 90
                )
                print(f"{row['question']:10} {row['seconds']:6.1f} s  {values}"[:400])
        errors = [row for row in rows if "error" in row]
        for row in errors:
            print(f"ERROR {row['question']} {row.get('model', '')}: {row['error']}"[:300])
        bad = [
            s for s in self.steps if s["state"] not in ("ok", "done") and not str(s["state"]).endswith("not yet: none")
        ]
        for step in bad:
            print(f"STEP {step['step']}: {step['state']}")
        print(
            f"{len(rows) - len(errors)} rows, {len(errors)} errors, {len(bad)} steps not clean, "
            f"{time.perf_counter() - START:.0f} s; files: {', '.join(sorted(p.name for p in self.out.iterdir()))}"
        )
        if self.args.plan == "smoke":
            print(
                "SMOKE "
                + (
                    "CLEAN: run main at once, while the machine is warm (30 s)"
                    if not errors and not bad
                    else "NOT CLEAN: give the machine back, mend, then main"
                )
            )


def _tar(paths: list[Path], mode: str = "gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{mode}") as archive:
        for path in paths:
            archive.add(path, path.name)
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> None:
    if len(data) > LIMIT_BYTES:  # better the head than nothing: rows.json never gets here
        data, path = gzip.compress(data), path.with_name(path.name + ".gz")
        if len(data) > LIMIT_BYTES:
            print(f"{path.name}: {len(data) / 2**20:.0f} MiB do not come back", flush=True)
            return
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(data)
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", choices=("smoke", "main"), default="main")
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="", help="of the plan's, by commas")
    args = parser.parse_args()
    call, cores = Call(args), os.cpu_count() or 1
    chosen = {
        n: b
        for n, b in (SMOKE if args.plan == "smoke" else MAIN).items()
        if not args.models or n in args.models.split(",")
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        if args.plan == "smoke":
            call.alone("machine", 40, "machine")
            others = (
                [Child(n, call.step(n), call.work) for n in ("fingerprints",)] if cores > 4 and not args.models else []
            )
            beside = call.side_by_side()
            call.models(chosen, min(5, max(1, cores - 2)))
            call.wait_for(beside, 90)
            for child in others:
                child.wait(max(1.0, min(30.0, call.left())))
                call.note(child.name, child.state, child.seconds)
        else:
            call.models(chosen, min(len(chosen), max(1, cores - 2)))
            call.alone("fingerprints", 45, "fingerprints")
    finally:
        call.pack()
        call.summary()


if __name__ == "__main__":
    main()
