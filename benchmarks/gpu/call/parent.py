"""The parent: starts one process a model, lets the next one capture while one is measured, gives the device in turn.

Standard library alone. A process that fails, hangs or is killed loses nothing but its own rest: rows are lines that it
writes at once, and after every step all of them are packed again.
"""

import sys
import time
from pathlib import Path

from benchmarks.gpu.call.agenda import PASSES, Agenda
from benchmarks.gpu.call.child import Child
from benchmarks.gpu.call.packing import pack, read_rows
from benchmarks.gpu.call.summary import summary

RESERVE_S = 6.0
"""Kept of the call's seconds for ending processes and packing."""


class Call:
    """All steps of one call; processes work in `work`, results go to `out`."""

    def __init__(self, agenda: Agenda, out: Path, work: Path) -> None:
        self.agenda, self.out, self.work, self.start = agenda, out, work, time.perf_counter()
        self.boxes = {step.label: step.box_s for step in agenda.steps()}
        self.steps: list[dict[str, object]] = []
        self.children: list[Child] = []
        for name in ("logs", "rows", "go", "done", "profiles", "traces", "files"):
            (work / name).mkdir(parents=True, exist_ok=True)
        for path in [*(work / "go").iterdir(), *(work / "done").iterdir()]:
            path.unlink()

    def run(self) -> None:
        """Ask everything; whatever happens, pack what is there, end what still runs, and print."""
        try:
            if self.agenda.plan == "smoke":
                self._smoke()
            else:
                self._main()
        finally:
            self.pack()
            for child in self.children:
                if not child.ended():
                    child.kill("killed: the call has ended")
                    self._note_end(child)
            files = ", ".join(sorted(path.name for path in self.out.iterdir()))
            end = f"{self._now():.0f} s; files: {files}"
            print(f"\nSUMMARY {self.agenda.plan} {self.agenda.device}")
            print(summary(self.agenda.plan, read_rows(self.work), self.steps, end), flush=True)

    def pack(self) -> None:
        """Pack what there is by now."""
        head = {"plan": self.agenda.plan, "device": self.agenda.device, "seconds": round(self._now(), 1)}
        pack(self.out, self.work, {**head, "steps": self.steps})

    def begin(self, name: str, *words: str) -> Child:
        """Start Python with these words as a process that ends with the call."""
        self.children.append(Child(name, (sys.executable, *words), self.work / "logs" / f"{name}.txt"))
        return self.children[-1]

    def wait_for(self, children: list[Child]) -> None:
        """Give processes that run beside each other the box of each, counted from now."""
        start = self._now()
        for child in children:
            child.wait(max(0.1, min(start + self.boxes[child.name] - self._now(), self._left())))
            self._note_end(child)

    def _now(self) -> float:
        return time.perf_counter() - self.start

    def _left(self) -> float:
        return self.agenda.seconds - self._now() - RESERVE_S

    def _note(self, label: str, state: str, seconds: float = 0) -> None:
        """Note how a step has ended, and pack."""
        at = self._now()
        self.steps.append({"step": label, "state": state, "seconds": round(seconds, 1), "at_s": round(at, 1)})
        print(f"[{at:6.1f} s] {label}: {state}, {seconds:.1f} s", flush=True)
        self.pack()

    def _note_end(self, child: Child, kind: str = "") -> None:
        self._note(f"{kind}{child.name}", child.state, child.seconds)

    def _begin(self, label: str, what: str) -> Child:
        """Start one of our own steps; a model's has its label for a name."""
        name = label if what == "model" else what
        where = self.agenda.plan, self.agenda.device, str(self.work)
        return self.begin(label, "-m", "benchmarks.gpu.call.step", what, name, *where)

    def _alone(self, what: str) -> None:
        if self._left() < min(15.0, self.boxes[what]):
            self._note(what, "no time left")
        else:
            self.wait_for([self._begin(what, what)])

    def _beside(self) -> list[Child]:
        """Start what asks for exact gradients alone: nothing is timed while models are captured."""
        steps = (("ranks over gloo", "ranks"), ("ranks over nccl", "nccl"))
        return [self._begin(label, what) for label, what in steps if label in self.boxes]

    def _smoke(self) -> None:
        """Let as many models at a time as there are cores run all they have."""
        self._alone("machine")
        others = [self._begin("fingerprints", "fingerprints")] if "fingerprints" in self.boxes else []
        beside, models = self._beside(), list[Child]()
        waiting, together = list(self.agenda.passes()), min(5, max(1, self.agenda.cores - 2))
        while self._left() > 20 and (waiting or any(not child.ended() for child in models)):
            if waiting and sum(not child.ended() for child in models) < together:
                models.append(self._begin(waiting.pop(0), "model"))
                for number in range(len(PASSES)):
                    self._go(models[-1].name, number)
            time.sleep(0.1)
        for child in models:
            child.wait(max(1.0, self._left()))
            self._note_end(child, "model ")
        for name in waiting:
            self._note(f"model {name}", "no time left")
        self.wait_for(beside)
        self.wait_for(others)

    def _main(self) -> None:
        """Measure each model alone."""
        beside, machine, models = self._beside(), self._begin("machine", "machine"), dict[str, Child]()
        names = list(self.agenda.passes())
        for place, name in enumerate(names):
            # The next one captures meanwhile, and no more: on the first call seven models at once filled the memory.
            for other in names[place : place + 2]:
                if other not in models and self._left() > 30:
                    models[other] = self._begin(other, "model")
            if name not in models:
                self._note(name, "no time left")
                continue
            self._await_capture(name, models[name])
            self.wait_for(beside)
            beside = []
            if machine.state == "running":
                self._go("machine", 0)  # its figures are ceilings: nothing else runs on the device
                machine.wait(min(self.boxes["machine"], max(1.0, self._left())))
                self._note_end(machine)
            for number in range(self.agenda.passes()[name]):
                self._turn(name, number, models[name])
            models[name].wait(5)  # its memory is the device's again before the next one is measured
        self._alone("fingerprints")

    def _go(self, name: str, number: int) -> None:
        (self.work / "go" / f"{name}.{number}").touch()

    def _told(self, child: Child, what: str, seconds: float) -> bool:
        """Whether a model tells that it is so far, before it ends and within so many seconds."""
        told, end = self.work / "done" / f"{child.name}.{what}", self._now() + seconds
        while self._now() < end and not told.exists() and not child.ended():
            time.sleep(0.02)
        return told.exists()

    def _await_capture(self, name: str, child: Child) -> None:
        label, start = f"{name}: captured", self._now()
        ready = self._told(child, "ready", min(self.boxes[label], max(1.0, self._left())))
        self._note(label, "ok" if ready else child.state, self._now() - start)

    def _turn(self, name: str, number: int, child: Child) -> None:
        """Give a model the device for one pass."""
        label, start = f"{name}: {PASSES[number]}", self._now()
        if child.ended():
            if child.state != "ok":
                self._note(label, f"gone ({child.state})")
        elif self._left() < 10:
            self._note(label, "no time left")
        else:
            box = min(self.boxes[label], self._left())
            self._go(name, number)
            done = self._told(child, str(number), box)
            if not done:
                child.kill(f"killed after {box:.0f} s in {label}")
            self._note(label, "done" if done else child.state, self._now() - start)
