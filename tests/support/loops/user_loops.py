"""Small training loops as people write them, each run twice: plainly in one process, and on a pipeline of two ranks.

A loop is one function of a `Job` and knows nothing of which of the two it is in. What is asked of it: losses and the
model's state after its steps are those of the plain run to 1e-5, or all ranks refuse it alike, before the first step
that would be wrong. It may never train something else in silence.

``python -m tests.support.loops.user_loops [NAME ...]`` runs loops in forks of one warm process and prints a JSON line
for each. Leaves out models and the kinds of loops (`MODULES`).
"""

import importlib
import itertools
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costmodel.capture.batches import TrainingModel, as_trained, split_batch
from costmodel.errors import PenstockError
from executor import Pipeline
from executor.communication.watch import farewell
from executor.state.microbatch_loader import as_arguments
from planner.plan import Plan
from tests.support.ranks.rank_pool import environment, free_port

MODULES = tuple(
    f"tests.support.loops.loops_{name}"
    for name in ("captured", "reached", "buffers", "disagreeing", "state", "gradients", "losses")
)
"""Modules whose functions marked with `user_loop` are the loops."""

NUM_RANKS, STEPS, BATCH, MICROBATCHES = 2, 6, 8, 4
CLOSE = 1e-5
"""By how much losses and states may differ, as a share of the largest number."""

REFUSALS = (2, 3, 6, 7)
"""Exit codes of a refusal."""

RANKS = "ranks"
"""The kind of loops in which ranks disagree."""

LIMIT_S = 120.0


@dataclass(frozen=True)
class UserLoop:
    """A loop.

    Attributes
    ----------
    name, kind : str
        Its function's name, and what it is about.
    run : callable
    refused : str
        A regular expression that the words of the refusal hold on every rank; empty for a loop that must be exact.
    codes : tuple of int
        Exit codes that the refusal may have, the same one on all ranks.
    """

    name: str
    kind: str
    run: Callable[["Job"], None]
    refused: str = ""
    codes: tuple[int, ...] = REFUSALS


_LOOPS: dict[str, UserLoop] = {}


def user_loop(kind: str, refused: str = "") -> Callable[[Callable[["Job"], None]], Callable[["Job"], None]]:
    """Mark a function of a job as a loop: exact, or refused in words that hold a regular expression."""

    def mark(function: Callable[["Job"], None]) -> Callable[["Job"], None]:
        add_loop(UserLoop(function.__name__, kind, function, refused))
        return function

    return mark


def add_loop(loop: UserLoop) -> None:
    """Make a loop known."""
    _LOOPS[loop.name] = loop


def loops(kind: str = "") -> Mapping[str, UserLoop]:
    """Return all loops by name, or those of a kind; those in which ranks disagree are a kind of their own."""
    for module in MODULES:
        importlib.import_module(module)
    return {
        name: loop for name, loop in _LOOPS.items() if kind in ("all", loop.kind) or (not kind and loop.kind != RANKS)
    }


def sgd(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


class Job:
    """One run of a loop: plain (`rank` is -1), or on one rank of a pipeline.

    Attributes
    ----------
    rank : int
        -1 in the plain run.
    folder : str
        For files; the plain run and the ranks have one each, ranks share theirs.
    model : torch.nn.Module
    pipe : Pipeline or None
        None in the plain run.
    optimizer : torch.optim.Optimizer
        Over all parameters, or this rank's.
    losses : list of float
        Of the steps done.
    """

    def __init__(self, rank: int, folder: str, plan_file: str, losses_file: str) -> None:
        self.rank, self.folder = rank, folder
        self.losses: list[float] = []
        self.pipe: Pipeline | None = None
        self._plan_file, self._losses_file = plan_file, losses_file

    @property
    def is_plain(self) -> bool:
        """Whether this is the run in one process."""
        return self.rank < 0

    def start(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        inputs: Any,
        targets: Any = None,
        *,
        optimizer: Callable[[Any], torch.optim.Optimizer] = sgd,
        split: Mapping[str | int, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        plans: Mapping[int, Mapping[str, Any]] | None = None,
        cut: Callable[[Any, Any, int, int], tuple[Any, Any]] | None = None,
        **options: Any,
    ) -> None:
        """Take the model: make its optimizer and, on a rank, its pipeline.

        Parameters
        ----------
        model, loss, inputs, targets, split
            As of `Pipeline.from_plan`.
        optimizer : callable
            Parameters -> what `step` steps. In a plan with OPT (``plan={"optimizer": "adam"}``) the pipeline does.
        plan : mapping, optional
            What `tests.support.plans_by_hand.plan_by_hand` takes, and `num_stages` (2) or `cuts`: shares of the
            operators before each cut.
        plans : mapping, optional
            Rank -> its plan, where it has another one.
        cut : callable, optional
            How the plain run cuts its batch, (inputs, targets, number, of how many) -> (inputs, targets); default: as
            the pipeline says that it does.
        options
            Of the pipeline.
        """
        self.model, self._loss, self._split, self._cut = model, loss, split or {}, cut
        wanted = {-1: plan or {}, **(plans or {})}
        if self.is_plain:
            made = {rank: self._plan(model, inputs, targets, dict(options)) for rank, options in wanted.items()}
            Path(self._plan_file).write_bytes(pickle.dumps(made))
            as_trained(model)
            self.optimizer = optimizer(list(model.parameters()))
            return
        made = pickle.loads(Path(self._plan_file).read_bytes())
        planned, has_opt = made.get(self.rank, made[-1]), self._has_opt(wanted)
        given = {"optimizer": optimizer, **options} if has_opt else options
        self.pipe = Pipeline.from_plan(
            planned, model, loss, inputs=inputs, targets=targets, split=split, **{"timeout_s": 20.0, **given}
        )
        self.optimizer = self.pipe.optimizer if has_opt else optimizer(list(self.pipe.parameters()))
        self._steps_itself = has_opt

    def _has_opt(self, wanted: Mapping[int, Mapping[str, Any]]) -> bool:
        return wanted.get(self.rank, wanted[-1]).get("optimizer") is not None

    def step(self, inputs: Any, targets: Any = None) -> float:
        """Train one step of a whole batch; returns its loss."""
        found = self.backward(inputs, targets)
        if self.is_plain or not self._steps_itself:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.note(found)
        return found

    def backward(self, inputs: Any, targets: Any = None) -> float:
        """Compute one batch's gradients without stepping the optimizer; returns its loss."""
        if self.pipe is not None:
            return self.pipe.step(inputs, targets)
        total, weights, weighted = 0.0, 0.0, False
        for number in range(MICROBATCHES):
            if self._cut is not None:
                piece = self._training(*self._cut(inputs, targets, number, MICROBATCHES))
            else:
                piece = split_batch(self._training(inputs, targets), number, MICROBATCHES)
            loss, weight = piece.evaluate(self.model(*piece.args, **piece.kwargs), piece.targets)
            (loss if weight is not None else loss / MICROBATCHES).backward()  # type: ignore[no-untyped-call]
            total, weights = total + float(loss.detach()), weights + (1.0 if weight is None else float(weight))
            weighted = weight is not None
        if weighted:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= weights
        return total / weights

    def state(self) -> dict[str, torch.Tensor]:
        """Return the whole model's state, on rank 0 and in the plain run; collective."""
        return self.model.state_dict() if self.pipe is None else self.pipe.state_dict()

    def end(self, state_file: str) -> None:
        """Write the state and leave."""
        state = {name: value.detach().clone() for name, value in self.state().items()}
        if self.rank <= 0:
            torch.save(state, state_file)
        if self.pipe is not None:
            self.pipe.close()

    def note(self, loss: float) -> None:
        """Keep the loss of a step that is done."""
        self.losses.append(loss)
        Path(self._losses_file).write_text(json.dumps(self.losses))

    def _training(self, inputs: Any, targets: Any) -> TrainingModel:
        args, kwargs = as_arguments(inputs)
        has_targets = targets is not None
        return TrainingModel("plain", self.model, args, kwargs, targets, has_targets, self._loss, self._split, BATCH)

    def _plan(self, model: nn.Module, inputs: Any, targets: Any, options: dict[str, Any]) -> Plan:
        """Make the plan, with the model and all generators left as they were."""
        from costmodel.capture.capture import capture
        from tests.support.plans_by_hand import in_equal_runs, plan_by_hand

        numbers, states = random.getstate(), torch.get_rng_state()
        kept = pickle.dumps({name: value.detach().clone() for name, value in model.state_dict().items()})
        as_trained(model)
        captured = capture(replace(self._training(inputs, targets), module=model), BATCH // MICROBATCHES)
        names, cuts = captured.operators, options.pop("cuts", None)
        if cuts is None:
            groups = in_equal_runs(names, options.pop("num_stages", NUM_RANKS))
        else:
            bounds = [0, *(round(share * len(names)) for share in cuts), len(names)]
            groups = [list(names[a:b]) for a, b in itertools.pairwise(bounds)]
        made = plan_by_hand(captured, groups, **{"num_microbatches": MICROBATCHES, **options})
        model.load_state_dict(pickle.loads(kept))
        random.setstate(numbers)
        torch.set_rng_state(states)
        return made


def result_of(loop: UserLoop) -> dict[str, Any]:
    """Run a loop plainly and on two ranks, each in a fork of this process; return what is wrong, and what was said."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code, _, said = _ended(_forked(folder, loop, -1, 0), time.monotonic() + LIMIT_S, folder, -1)
        if code:
            return {"name": loop.name, "problems": [f"the plain run fails: {said[-800:]}"], "codes": [], "said": ""}
        port, limit = free_port(), time.monotonic() + LIMIT_S
        started = [_forked(folder, loop, rank, port) for rank in range(NUM_RANKS)]
        found = [_ended(pid, limit, folder, rank) for rank, pid in enumerate(started)]
        codes, words = [row[0] for row in found], [row[2] for row in found]
        return {
            "name": loop.name,
            "problems": list(_judged(loop, folder, codes, words)),
            "codes": codes,
            "said": _last_words(words[0]),
            "cpu_s": round(sum(row[1] for row in found), 2),
        }


def _forked(folder: Path, loop: UserLoop, rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(os.open(folder / f"said{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        sys.stderr = os.fdopen(2, "w", 1)
        code = _run(folder, loop, rank, port)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(folder: Path, loop: UserLoop, rank: int, port: int) -> int:
    if rank >= 0:
        os.environ |= environment(rank, NUM_RANKS, port)
    torch.manual_seed(0)
    random.seed(0)
    own = folder / ("plain" if rank < 0 else "ranks")
    own.mkdir(exist_ok=True)
    job = Job(rank, str(own), str(folder / "plan"), str(folder / f"losses{rank}"))
    try:
        loop.run(job)
        job.end(str(folder / f"state{min(rank, 0)}"))
    except PenstockError as error:
        farewell(error.exit_code, f"error: {error}")
        return error.exit_code
    return 0


def _ended(pid: int, limit: float, folder: Path, rank: int) -> tuple[int, float, str]:
    """Wait for a process; return its exit code, CPU seconds and words."""
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() > limit:
            os.kill(pid, 9)
            _, status, usage = os.wait4(pid, 0)
            break
        time.sleep(0.01)
    path = folder / f"said{rank}"
    said = path.read_text() if path.exists() else ""
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, said


def _judged(loop: UserLoop, folder: Path, codes: Sequence[int], words: Sequence[str]) -> Iterator[str]:
    plain = json.loads((folder / "losses-1").read_text()) if (folder / "losses-1").exists() else []
    for rank in range(NUM_RANKS):
        path = folder / f"losses{rank}"
        losses = json.loads(path.read_text()) if path.exists() else []
        if not _alike(losses, plain[: len(losses)]):
            yield f"rank {rank} trains something else in silence: {losses} for {plain}"
        elif not loop.refused and len(losses) < len(plain):
            yield f"rank {rank} ends after {len(losses)} steps with {codes[rank]}: {words[rank][-800:]}"
    if not loop.refused:
        yield from (f"rank {rank} ended with {code}: {words[rank][-800:]}" for rank, code in enumerate(codes) if code)
        if not any(codes):
            yield from _differing(torch.load(folder / "state0"), torch.load(folder / "state-1"))
        return
    if len(set(codes)) > 1 or codes[0] not in loop.codes:
        yield f"the ranks end with {list(codes)}, for one refusal: {[row[-400:] for row in words]}"
    for rank, said in enumerate(words):
        if not re.search(loop.refused, said):
            yield f"rank {rank} does not say {loop.refused!r}: {said[-600:]}"


def _differing(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> Iterator[str]:
    if found.keys() != expected.keys():
        yield f"the state has other names: {sorted(found.keys() ^ expected.keys())}"
    for name in found.keys() & expected.keys():
        mine, right = found[name], expected[name]
        if mine.shape != right.shape:
            yield f"{name} has the shape {list(mine.shape)} for {list(right.shape)}"
        elif right.numel():
            worst, size = float((mine.double() - right.double()).abs().max()), float(right.double().abs().max())
            if not worst <= CLOSE * max(size, 1e-2):
                yield f"{name} differs by {worst:.3g} of {size:.3g} after the last step"


def _alike(found: Sequence[float], expected: Sequence[float]) -> bool:
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-9) for a, b in pairs)


def _last_words(said: str) -> str:
    lines = [line for line in said.splitlines() if line and not line.startswith("PENSTOCK_EXIT")]
    return lines[-1] if lines else ""


def failures(names: Sequence[str]) -> list[str]:
    """Run loops in a process of their own; return a line for each that is neither exact nor refused as it should be."""
    command = [sys.executable, "-m", "tests.support.loops.user_loops", *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rows = [json.loads(line) for line in process.stdout]
    done = {row["name"] for row in rows}
    missing = [f"{name}: has not run" for name in names if name not in done]
    return missing + [f"{row['name']}: {line}" for row in rows for line in row["problems"]]


def loop_failures(num_loops: int, kind: str = "") -> list[str]:
    """Run so many of the loops, spread over all of them."""
    names = list(loops(kind))
    return failures(names[:: max(1, len(names) // num_loops)][:num_loops])


def _warm() -> None:
    """Export a model once, so that forks need not."""
    from costmodel.capture.capture import capture

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.zeros(4, 4)
    capture(TrainingModel("warm", model, (x,), {}, None, False, torch.sum, {}, 4), 2)


def main() -> None:
    _warm()
    found = loops("all")
    for name in sys.argv[1:] or found:
        print(json.dumps(result_of(found[name])), flush=True)


if __name__ == "__main__":
    from tests.support.loops import user_loops  # the module that loops import, not this script

    user_loops.main()
