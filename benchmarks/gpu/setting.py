"""What the questions of `benchmarks.gpu` have in common: the models, how they are loaded, and how time is taken.

On a CPU every model is its small one, so that all code runs without a GPU. Leaves out what is asked.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from costmodel.capture.batches import TrainingModel, move
from costmodel.capture.clock import Clock, clock_for
from costmodel.capture.heap import drop_unreachable
from costmodel.capture.models import load_model
from costmodel.model.profile import Profile, read_profile, write_profile
from costmodel.profiling.measure.live import LiveBytes
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile

UNTIMED = 2
"""Rounds before timed ones."""

Row = Mapping[str, Any]
Verdict = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model: micro-batch sizes at full size, numbers' type, and GiB above which it is measured block by block."""

    name: str
    sizes: tuple[int, ...]
    dtype: str = "bfloat16"
    limit_gib: float = 0.0


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("mmt", (8, 16, 32)),
        Subject("dlrm", (256, 512, 1024), "float32"),
        Subject("uno", (256, 512, 1024), "float32"),
        Subject("llama3", (1, 2, 4)),
        Subject("unet3d", (1, 2, 4), "float32"),
        Subject("yolo", (8, 16, 32)),
        Subject("moe", (1, 2, 4), limit_gib=60.0),
    )
}
"""Sizes at which an H100 computes rather than waits for the host; `moe` has 47 billion parameters."""

SMALL_SIZES = (1, 2, 4)


@dataclass(frozen=True)
class Setting:
    """Where and how everything is measured."""

    device: torch.device
    folder: Path
    repeats: int
    models: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Whether models have their full size."""
        return self.device.type == "cuda"

    @property
    def clock(self) -> Clock:
        """What times work on the device."""
        return clock_for(self.device)

    def chosen(self, names: tuple[str, ...]) -> list[Subject]:
        """Return the subjects of a question: those of its names that were asked for."""
        return [SUBJECTS[name] for name in names if not self.models or name in self.models]

    def spec(self, subject: Subject) -> str:
        """Return the zoo's name of a subject."""
        return f"zoo:{subject.name}" if self.full else f"zoo:{subject.name}:small"

    def options(self, subject: Subject) -> Options:
        """Return what a subject is profiled with."""
        return Options(
            self.spec(subject),
            subject.sizes if self.full else SMALL_SIZES,
            self.device.type,
            subject.dtype,
            repeats=self.repeats,
            links=False,
            memory_limit_bytes=round(subject.limit_gib * 2**30) if self.full else 0,
        )

    def load(self, subject: Subject, batch: int, dtype: str = "") -> TrainingModel:
        """Return a subject with so many samples, its values drawn on the device itself."""
        with self.device:
            model = load_model(self.spec(subject), batch)
        return move(model, self.device, getattr(torch, dtype or subject.dtype))

    def profile_path(self, subject: Subject) -> Path:
        """Return where a subject's profile lies."""
        return self.folder / "profiles" / f"{subject.name}.json.gz"

    def profile(self, subject: Subject) -> Profile:
        """Return a subject's profile: the one that lies there, else measured now."""
        path = self.profile_path(subject)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            found = profile(self.options(subject), Path(f"{path}.journal"))
            write_profile(path, found)
            Path(f"{path}.journal").unlink()
        return read_profile(path)

    def wait(self) -> None:
        """Return when the device has done all issued work."""
        if self.full:
            torch.cuda.synchronize(self.device)

    def free(self) -> None:
        """Give freed memory back, and make what libraries allocate once be there before anything is counted."""
        drop_unreachable(self.device)
        if self.full:
            one = torch.ones(64, 64, device=self.device, requires_grad=True)
            (one @ one).sum().backward()  # type: ignore[no-untyped-call]
            self.wait()

    def allocated_bytes(self) -> int:
        """Return what torch's allocator has handed out; 0 on a CPU, which keeps no count."""
        return torch.cuda.memory_allocated(self.device) if self.full else 0

    @contextmanager
    def growth(self) -> Iterator[Callable[[], int]]:
        """Yield what returns the most bytes that were allocated since the block began, above those that were there."""
        if not self.full:
            with LiveBytes() as live:
                yield lambda: live.peak
            return
        self.wait()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = self.allocated_bytes()
        yield lambda: torch.cuda.max_memory_allocated(self.device) - before

    def step_ns(self, step: Callable[[], object]) -> int:
        """Return the median wall time of a step, each waited for, after untimed ones."""
        times = []
        for round_index in range(-UNTIMED, self.repeats):
            self.wait()
            start = time.perf_counter_ns()
            step()
            self.wait()
            if round_index >= 0:
                times.append(time.perf_counter_ns() - start)
        return round(median(times))


def eager_step(model: TrainingModel) -> None:
    """Run one forward and backward as a plain training loop does; gradients are added up."""
    with model.casting():
        output = model.module(*model.args, **model.kwargs)
    model.evaluate(output, model.targets)[0].backward()  # type: ignore[no-untyped-call]


def percent(value: float) -> float:
    """Return a ratio - 1 in per cent, one decimal."""
    return round(100 * (value - 1), 1)


def within(what: str, rows: list[Row], key: str, most: float) -> list[Verdict]:
    """Return the verdict that a column of percentages lies within a bound in every row that has it."""
    found = [abs(row[key]) for row in rows if row.get(key) is not None]
    if not found:
        return [(f"{what}: nothing was measured", False)]
    return [(f"{what}: worst {max(found):.1f} % of {len(found)}, at most {most:g} %", max(found) <= most)]
