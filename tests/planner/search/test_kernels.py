"""Compiled kernels: made once a machine, by a process that nobody waits for, and never wrong or in the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planner.search.solvers import kernel_cache
from planner.search.solvers.annealing.readiness import Kernels
from planner.search.solvers.kernel_cache import folder_for_kernels, is_compiling, take_lock, whole_folder
from tests.support.repository import ROOT

PATIENCE_S = 1500
"""After which a test counts as hanging."""


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}


def run(code: str, cache: Path) -> str:
    """Return what a process says on standard output; it ends with an error where it waits for too long."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment(cache), capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return done.stdout


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(name="cold")
def machine_without_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder without kernels; what still compiles into it in the end is killed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Kernels, "_loaded", False)
    yield tmp_path
    for pid in compilers(tmp_path):
        os.kill(pid, signal.SIGKILL)


def compilers(cache: Path) -> list[int]:
    """Return the processes that compile kernels into a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"XDG_CACHE_HOME={cache}".encode() in (entry / "environ").read_bytes():
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found += [int(entry.name)] if b"planner.search.solvers.compile_kernels" in words else []
        except OSError:  # it has ended, or is another user's
            continue
    return found


START = (
    "from planner.search.solvers.annealing.readiness import Kernels\nwith Kernels() as kernels: print(kernels.start())"
)


def test_several_searches_start_one_process_that_none_waits_for_and_that_is_apart_from_them(cold: Path) -> None:
    assert run(START, cold) == "True\n"  # its pipes are closed though that process is at work
    assert is_compiling()
    assert run(START, cold) == "False\n"
    (pid,) = compilers(cold)
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
    assert os.getpgid(pid) != os.getpgrp()
    assert os.getsid(pid) != os.getsid(0)
    assert {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)} == {"/dev/null"}


def test_a_search_need_not_wait_for_the_process_that_compiles(cold: Path) -> None:
    with Kernels() as kernels:
        assert kernels.start()
        assert not kernels.ready(0.0)
        assert not kernels.ready(0.01)
    assert is_compiling()


def test_the_lock_of_a_dead_process_is_free(cold: Path) -> None:
    with Kernels() as kernels:
        assert kernels.start()
    (pid,) = compilers(cold)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_compiling())
    with Kernels() as kernels:
        assert not kernels.ready(1.0)  # nobody compiles: it does not wait
        assert kernels.start()


def test_a_process_that_compiles_ends_by_itself(cold: Path) -> None:
    folder = folder_for_kernels()
    assert folder
    code = """
import sys, time
from planner.search.solvers import compile_kernels
compile_kernels.MOST_S = 1
compile_kernels.compile_all = lambda: time.sleep(10_000)
sys.argv = ["compile_kernels", "--detached"]
compile_kernels.main()
"""
    lock = take_lock(folder)
    assert lock is not None
    subprocess.run([sys.executable, "-c", code], env=environment(cold), pass_fds=(lock,), check=True)
    os.close(lock)
    wait_until(lambda: not is_compiling())
    assert whole_folder() is None


def test_where_no_folder_can_be_written_a_short_search_has_no_kernels_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel_cache._state()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(kernel_cache, "__file__", "/dev/null/kernel_cache.py")
    monkeypatch.setattr(Kernels, "_loaded", False)
    with Kernels() as kernels:
        assert not kernels.start()
        assert not kernels.ready(0.0)
        assert not kernels.ready(5.0)


def test_a_folder_that_others_can_write_to_is_not_read(cold: Path) -> None:
    folder = folder_for_kernels()
    assert folder
    kernel_cache.note_whole(folder)
    assert whole_folder() == folder
    folder.chmod(0o777)
    assert whole_folder() != folder


def test_any_change_of_their_sources_makes_kernels_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = kernel_cache._state.__wrapped__
    before = state()
    for name in kernel_cache.SOURCES:
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(kernel_cache, "PACKAGES", tmp_path)
    assert state() == before
    for name in kernel_cache.SOURCES:
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole + b"\n")
        assert state() != before
        (tmp_path / name).write_bytes(whole)


def test_only_the_newest_folders_are_kept(cold: Path) -> None:
    folder = folder_for_kernels()
    assert folder
    for age in range(20):
        other = folder.parent / f"old{age}"
        other.mkdir()
        os.utime(other, (1_000 - age, 1_000 - age))
    kernel_cache.note_whole(folder)
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, *(f"old{age}" for age in range(15))}


USE = """
from planner.search.solvers.annealing import kernels as annealing
from planner.search.solvers.annealing.annealer import Annealer
from planner.search.solvers.annealing.readiness import Kernels
from planner.search.solvers.relaxation.build import cut_data
from planner.search.solvers.lattice import kernels as lattice
from planner.search.solvers.lattice.bound import LatticeBound
from planner.search.solvers.lattice.replicas import ReplicasBound
from planner.search.state.prepared import PreparedProblem
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches
with Kernels() as kernels:
    print(kernels.start(), kernels.ready(0.0))
setting = PreparedProblem(pipelines(branches(2, 3), 3, 6))
cuts = setting.cuts(setting.families.all[0])
found = list(Annealer(cuts, line=False, effort=0.01).annealed(None, 0))
data = cut_data(cuts, 0, binding=False)
replicas = ReplicasBound(data, 4, (0,) * data.num_atoms, sharded=False)
bounds = [list(each.rise(10**9)) for each in (LatticeBound(data), LatticeBound(data, estimate=True), replicas)]
used = [each for room in (annealing, lattice) for each in vars(room).values() if hasattr(each, "stats")]
assert annealing.anneal.stats.cache_hits
print(sum(bool(each.stats.cache_misses) for each in used))
print(found, bounds)
"""


LEFT_OUT = ("kernels.anneal-", "kernels.pairs_of-", "order_timing.time_row-")
"""A kernel of each module that its `compile_all` calls."""


@pytest.fixture(name="kept")
def kernels_of_this_machine() -> Path | None:
    return whole_folder()


def install(kept: Path | None, cold: Path) -> None:
    """Compile as an installation does, after what this machine's own compiled; `LEFT_OUT` are compiled in any case.

    Kernels that searches have added since are not taken: what an installation leaves to them would go unseen.
    """
    folder = folder_for_kernels()
    assert folder
    if kept:
        folder.mkdir(parents=True, exist_ok=True)
        for name in json.loads((kept / kernel_cache.WHOLE).read_text()):
            if not name.startswith(LEFT_OUT):
                shutil.copy(kept / name, folder)
                shutil.copy(kept / f"{name.rsplit('.', 2)[0]}.nbi", folder)
    command = [sys.executable, "-m", "planner.search.solvers.compile_kernels"]
    subprocess.run(command, env=environment(cold), check=True, timeout=PATIENCE_S)


@pytest.mark.timeout(3600)  # where this machine has no kernels it takes a minute of a processor
def test_an_installation_compiles_all_that_a_search_needs_and_damage_costs_only_time(
    kept: Path | None, cold: Path
) -> None:
    install(kept, cold)
    folder = whole_folder()
    assert folder
    assert folder.is_relative_to(cold)
    files = {path: path.read_bytes() for path in folder.glob("*.nb?")}
    begun, compiled, result = run(USE, cold).splitlines()
    assert (begun, compiled) == ("False True", "0")
    assert {path: path.read_bytes() for path in folder.glob("*.nb?")} == files

    damaged = next(path for path in files if path.match("kernels.pairs_of-*.nbc"))
    damaged.write_bytes(bytes(len(files[damaged])))
    next(path for path in files if path.match("kernels.heads_of-*.nbi")).write_bytes(b"no index")
    assert run(USE, cold).splitlines() == ["False True", "2", result]
    assert damaged.read_bytes().strip(b"\0")  # what was compiled again is kept
    damaged.write_bytes(b"cut short")
    assert whole_folder() is None
    assert run(START, cold) == "True\n"
