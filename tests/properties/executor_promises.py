"""What the executor promises on every plan and at any moment: exact gradients, and no rank left behind."""

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from executor.__main__ import main
from planner.plan import write_plan
from tests.support.ranks import behind_jobs
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool, environment, free_port, process_context

MODEL = "tests.support.training_models:two_branch"
NUM_RANKS = 3
TIMEOUT_S = 6.0
"""How long a rank may say nothing where one is stopped: more than a busy machine keeps any from running."""


def _command(
    command: Callable[[list[str]], int], arguments: list[str], environ: dict[str, str], out: str, err: str
) -> None:
    os.environ |= environ
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    code = command(arguments)
    sys.stdout.flush()
    os._exit(code)


class Ranks:
    """Ranks of the command (or another one), each started as torchrun would start it."""

    def __init__(
        self, folder: Path, num_ranks: int, *arguments: object, command: Callable[[list[str]], int] = main
    ) -> None:
        port = free_port()
        self.files = [(folder / f"out{rank}", folder / f"err{rank}") for rank in range(num_ranks)]
        self.processes = []
        for rank, (out, err) in enumerate(self.files):
            out.unlink(missing_ok=True)
            err.unlink(missing_ok=True)
            given = (command, [str(a) for a in arguments], environment(rank, num_ranks, port), str(out), str(err))
            process = process_context().Process(target=_command, args=given, daemon=True)
            process.start()
            self.processes.append(process)

    def wait_for(self, text: str, rank: int = 0, timeout_s: float = 90) -> None:
        """Wait until a rank says something on stderr."""
        end = time.monotonic() + timeout_s
        while not self.files[rank][1].exists() or text not in self.files[rank][1].read_text():
            assert time.monotonic() < end
            assert self.processes[rank].is_alive()
            time.sleep(0.02)

    def finish(self, timeout_s: float = 90) -> list[tuple[int, str, str]]:
        """Return (exit code, stdout, stderr) of each rank."""
        found = []
        for process, (out, err) in zip(self.processes, self.files, strict=True):
            process.join(timeout_s)
            assert process.exitcode is not None, "a rank is still there"
            found.append((process.exitcode, out.read_text(), err.read_text()))
        return found


def penstock_exit(stderr: str) -> list[int]:
    return [int(n) for n in re.findall(r"PENSTOCK_EXIT=(\d+)", stderr)]


def kill_problems(plan_file: Path, folder: Path, case: int, most_s: float | None = None) -> list[str]:
    """Kill a rank (first, middle, last in turn) at a random moment; return what the others do wrong.

    Where `most_s` is given it is wrong, too, to end later.
    """
    victim, rng = case % NUM_RANKS, Random(case)
    ranks = Ranks(folder, NUM_RANKS, plan_file, "--model", MODEL, "--steps", 1000000)
    ranks.wait_for("step 2:")
    time.sleep(0.05 * rng.random())  # several steps long: warm-up, steady or cool-down
    ranks.processes[victim].kill()
    return _last_words(ranks, victim, most_s)


def stop_problems(plan_file: Path, folder: Path, case: int, most_s: float | None = None) -> list[str]:
    """Stop a rank at a random moment with a timeout of `TIMEOUT_S`; return what the others do wrong."""
    victim, rng = case % NUM_RANKS, Random(case)
    ranks = Ranks(folder, NUM_RANKS, plan_file, "--model", MODEL, "--steps", 1000000, "--timeout", TIMEOUT_S)
    ranks.wait_for("step 2:")
    time.sleep(0.05 * rng.random())
    os.kill(ranks.processes[victim].pid, signal.SIGSTOP)
    return _last_words(ranks, victim, most_s)


def _last_words(ranks: Ranks, victim: int, most_s: float | None = None) -> list[str]:
    start = time.monotonic()
    others = [rank for rank in range(NUM_RANKS) if rank != victim]
    for rank in others:
        ranks.processes[rank].join(120)
    seconds = time.monotonic() - start
    ranks.processes[victim].kill()
    found = ranks.finish()
    problems = [f"the others ended after {seconds:.1f} s"] if most_s and seconds > most_s + 1 else []  # 1 s: its own
    for rank in others:
        code, _, err = found[rank]
        where = (
            r"this rank was (between steps|in [\w ]+|at \d\w+\S* \(stage \d(, micro-batch \d)?\)); "
            r"the last complete step is \d+"
        )
        if code != 8 or penstock_exit(err) != [8]:
            problems.append(f"rank {rank} ended with {code}: {err[-300:]}")
        elif f"lost rank {victim}" not in err or not re.search(where, err):
            problems.append(f"rank {rank} does not name what happened: {err[-300:]}")
    return problems


def random_plan_failures(num_cases: int, num_ranks: int = 4) -> list[str]:
    """Run random plans of random models, a quarter with waiting sends; return those that fail or are not exact."""
    pool, failures = RankPool(num_ranks), []
    for seed in range(num_cases):
        failures += _inexact(pool, f"seed {seed}", jobs.random_errors, seed=seed, strict=seed % 4 == 0)
    pool.close()
    return failures


def behind_plan_failures(num_cases: int, num_ranks: int = 4, *, by_turns: bool = False) -> list[str]:
    """Run random plans on devices that work behind their hosts, with one queue and with eight (or by turns)."""
    pool, failures = RankPool(num_ranks), []
    for seed in range(num_cases):
        for queues in (1, 8)[seed % 2 :][:1] if by_turns else (1, 8):
            where = f"seed {seed}, {queues} queues"
            failures += _inexact(pool, where, behind_jobs.random_errors, seed=seed, num_queues=queues)
    pool.close()
    return failures


def _inexact(pool: RankPool, where: str, job: Callable[..., dict[str, float]], **given: object) -> list[str]:
    try:
        found = pool.run(job, **given)[0]
    except AssertionError as error:
        return [f"{where}: {str(error)[-300:]}"]
    return [] if found["gradient"] <= 1e-5 and found["loss"] <= 1e-6 else [f"{where}: {found}"]


def still_rank_problems(folder: Path, victim: int, num_queues: int) -> list[str]:
    """Stop a rank whose peers' hosts wait for nothing, with a timeout; return what the others do wrong."""
    ranks = Ranks(folder, NUM_RANKS, victim, num_queues, TIMEOUT_S, command=behind_jobs.stand_still)
    ranks.wait_for("stops after this step", victim)
    return _last_words(ranks, victim)


def lost_rank_failures(num_cases: int) -> list[str]:
    """Kill ranks, and stop one for every three killed."""
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.json"
        write_plan(plan, jobs.make_plan("two_branch", num_stages=NUM_RANKS))
        for case in range(num_cases):
            tried, most_s = (kill_problems, 5.0) if case % 4 else (stop_problems, TIMEOUT_S + 2)
            failures += [f"case {case}: {line}" for line in tried(plan, folder, case, most_s)]
    return failures
