"""Writers of a plan that are killed at random moments, and what stands there afterwards."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.plan import read_plan, write_plan
from tests.support.repository import GOLDEN, ROOT

KILLER = """
import os, random, signal, sys, time
from dataclasses import replace
from planner.plan import read_plan, write_plan

source, target, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
plan = read_plan(source)
plans = [replace(plan, extra={"pad": letter * 200_000}) for letter in "ab"]
write_plan(target, plans[0])
moments, torn = random.Random(0), 0
for number in range(kills):
    begun, begins = os.pipe()
    writer = os.fork()
    if not writer:
        while True:
            for one in plans[:: 1 if number % 2 else -1]:
                write_plan(target, one)
                os.write(begins, b".")
    os.close(begins)
    os.read(begun, 1)  # however slow the machine is, it is at its second write at least
    time.sleep(moments.uniform(0.0, 0.03))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    os.close(begun)
    torn += any(name.endswith(".tmp") for name in os.listdir(os.path.dirname(target)))  # the next writer clears it
    found = read_plan(target)
    assert found in plans, f"kill {number}: torn"
    print(found.extra["pad"][0], end="")
print(torn, file=sys.stderr)
"""


def kill_failures(num_kills: int) -> list[str]:
    """Kill so many writers; return what is wrong: a torn file, something left behind, or kills that hit no write."""
    with TemporaryDirectory() as folder:
        target = Path(folder) / "plan.json"
        command = [sys.executable, "-c", KILLER, str(GOLDEN / "plan.json"), str(target), str(num_kills)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return [done.stderr[-500:]]
        write_plan(target, read_plan(target))
        left = sorted(path.name for path in Path(folder).iterdir() if path != target)
    found = [f"left behind: {left}"] if left else []
    if len(done.stdout) != num_kills or set(done.stdout) != {"a", "b"} or not int(done.stderr):
        found.append(f"kills fell on one side of the writes alone: {done.stdout[:80]} {done.stderr}")
    return found
