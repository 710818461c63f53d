"""Measuring links: how long one transfer takes between the ranks at hand, by size.

A point-to-point time is half a round trip of isend and irecv: from the end of the sender's action until
the receiver may start; what a message takes from ranks that compute is measured in `links_host`. Collectives
are timed from a common start to the last rank's end, by the bytes of the whole buffer. Leaves out
contention between transfers.
"""

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from costmodel.capture.heap import keep_freed_memory
from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.link_fit import Table, fit_ranges
from costmodel.machines.links import LinkClass, Links
from costmodel.profiling.links_host import HOST_SIZES_BYTES, host_ns
from costmodel.profiling.links_overlap import slowdown

SIZES_BYTES = {device: tuple(1024 * 4**i for i in range(count)) for device, count in (("cpu", 8), ("cuda", 11))}
"""1 KiB to 16 MiB; between GPUs to 1 GiB, where NVLink has its full rate from some hundred MiB on."""

GRADIENTS = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""What is summed: as gradients are, since NVLink's own sums (NVLS) take no bytes."""

BYTES_A_SIZE = 32 * 2**20
"""Bytes moved at one size: repetitions follow from it, within MIN_REPEATS and MAX_REPEATS."""

MIN_REPEATS, MAX_REPEATS = 5, 60

FOR_PLANS = ("p2p", "p2p_host", "all_reduce")
"""Classes that plans are priced with."""

IN_A_ROW = 4
"""Transfers between two barriers: ranks leave a barrier at different times."""


@dataclass(frozen=True, slots=True)
class _Setting:
    parent: int
    num_ranks: int
    device: str
    store: str
    result: str


def measure_links(
    num_ranks: int = 2, device: str = "cpu", classes: tuple[str, ...] = FOR_PLANS, *, overlap: bool = False
) -> Links:
    """Measure links between `num_ranks` local processes, or between torchrun's ranks under torchrun.

    Parameters
    ----------
    num_ranks : int
        Processes to start; under torchrun it must be its world size.
    device : str
        ``cpu`` (gloo) or ``cuda`` (NCCL, one GPU a rank).
    classes : tuple of str
        Which of `costmodel.machines.links.CLASSES`.
    overlap : bool
        Measure too by what compute slows during a sum over all ranks.

    Raises
    ------
    UsageError
        With fewer than two ranks, or fewer GPUs than ranks.
    """
    if num_ranks < 2:
        raise UsageError(f"a link needs two ranks, found --ranks {num_ranks}")
    if device == "cuda" and torch.cuda.device_count() < num_ranks:
        raise UsageError(f"{num_ranks} ranks need as many GPUs, found {torch.cuda.device_count()}; use --device cpu")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _under_torchrun(num_ranks, device, classes, overlap)
    return measure_local_links(num_ranks, device, classes, overlap=overlap)


def measure_local_links(
    num_ranks: int = 2, device: str = "cpu", classes: tuple[str, ...] = FOR_PLANS, *, overlap: bool = False
) -> Links:
    """Measure links between processes that are started here, whether or not torchrun has started this one.

    Parameters as of `measure_links`.
    """
    with tempfile.TemporaryDirectory() as folder:
        setting = _Setting(os.getpid(), num_ranks, device, f"{folder}/store", f"{folder}/tables")
        _run_ranks(setting, classes, overlap)
        return _links(*_read_tables(Path(setting.result)), num_ranks, device)


def _run_ranks(setting: _Setting, classes: tuple[str, ...], overlap: bool) -> None:
    """Start the ranks and wait for them; they end with this process, and without words, however it ends."""
    resource_tracker.ensure_running()  # its start would let signals in again
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # ranks inherit it: it waits until they can hear
    try:
        with _sigterm_waiting():
            ranks = spawn(  # type: ignore[no-untyped-call]
                _worker, (setting, classes, overlap), nprocs=setting.num_ranks, join=False, daemon=True
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    while not ranks.join():
        pass


@contextmanager
def _sigterm_waiting() -> Iterator[None]:
    """Hear SIGTERM when all is done in here: amid a start it left a rank with half of what it is told.

    Ranks do not inherit it, for they are to end by it at any time. Only the main thread hears signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    usual = signal.signal(signal.SIGTERM, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)
        if waiting:
            signal.raise_signal(waiting[0])


def _under_torchrun(num_ranks: int, device: str, classes: tuple[str, ...], overlap: bool) -> Links:
    world = int(os.environ["WORLD_SIZE"])
    if world != num_ranks:
        raise UsageError(f"torchrun started {world} ranks, --ranks says {num_ranks}; give the same number")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(_backend(device))
    try:
        return _links(_tables(device, classes), _slowdown(device, overlap), world, device)
    finally:
        dist.destroy_process_group()


def _slowdown(device: str, overlap: bool) -> float:
    return slowdown(GRADIENTS[device], device) if overlap else 0.0


def _worker(rank: int, setting: _Setting, classes: tuple[str, ...], overlap: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # torch has it sent to a rank whose parent ends
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if os.getppid() != setting.parent:  # it ended before torch asked for that
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    if setting.device == "cuda":
        torch.cuda.set_device(rank)
    store = FileStore(setting.store, setting.num_ranks)
    dist.init_process_group(_backend(setting.device), store=store, rank=rank, world_size=setting.num_ranks)
    tables, factor = _tables(setting.device, classes), _slowdown(setting.device, overlap)
    if rank == 0:
        Path(setting.result).write_text(json.dumps([tables, factor]))
    dist.barrier()
    dist.destroy_process_group()


def _read_tables(path: Path) -> tuple[dict[str, Table], float]:
    if not path.exists():
        raise InvalidInput("the measuring ranks ended without a result; run `penstock links` again")
    tables, factor = json.loads(path.read_text())
    return {name: tuple((size, ns) for size, ns in rows) for name, rows in tables.items()}, factor


def _backend(device: str) -> str:
    return "nccl" if device == "cuda" else "gloo"


def _tables(device: str, classes: tuple[str, ...]) -> dict[str, Table]:
    """Measure on every rank; rank 0's tables count."""
    return {name: _table(name, device) for name in classes}


def _table(name: str, device: str) -> Table:
    if name == "p2p_host":
        dist.barrier()
        return tuple((size, host_ns(size, device)) for size in HOST_SIZES_BYTES)
    return tuple((size, _measure(_TRANSFERS[name], size, device)) for size in SIZES_BYTES[device])


def _measure(transfer: Callable[[torch.Tensor], int], size: int, device: str) -> int:
    """Return the lower quartile of a transfer's ns: other work on the machine only ever adds.

    `transfer` says how many it made.
    """
    tensor = torch.zeros(size // GRADIENTS[device].itemsize, dtype=GRADIENTS[device], device=device)
    repeats = max(MIN_REPEATS, min(MAX_REPEATS, BYTES_A_SIZE // size) // IN_A_ROW)
    spans = []
    for _ in range(repeats + 1):
        dist.barrier()
        _synchronize(device)
        start = time.perf_counter_ns()
        count = sum(transfer(tensor) for _ in range(IN_A_ROW))
        _synchronize(device)
        spans.append((time.perf_counter_ns() - start) / count)
    return round(sorted(spans[1:])[(len(spans) - 1) // 4])


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _p2p(tensor: torch.Tensor) -> int:
    """Send to and fro between ranks 0 and 1; the others wait at the next barrier."""
    rank = dist.get_rank()
    if rank > 1:
        return 1
    for sends in (rank == 0, rank == 1):
        work = dist.isend(tensor, 1 - rank) if sends else dist.irecv(tensor, 1 - rank)
        assert work is not None  # noqa: S101 - both ranks are in the group
        work.wait()
    return 2


def _all_reduce(tensor: torch.Tensor) -> int:
    dist.all_reduce(tensor)
    return 1


def _all_gather(tensor: torch.Tensor) -> int:
    pieces = list(tensor.chunk(dist.get_world_size()))
    dist.all_gather(pieces, pieces[dist.get_rank()].clone())
    return 1


def _reduce_scatter(tensor: torch.Tensor) -> int:
    pieces = list(tensor.chunk(dist.get_world_size()))
    dist.reduce_scatter(torch.empty_like(pieces[dist.get_rank()]), pieces)
    return 1


def _all_to_all(tensor: torch.Tensor) -> int:
    dist.all_to_all_single(torch.empty_like(tensor), tensor)
    return 1


_TRANSFERS: Mapping[str, Callable[[torch.Tensor], int]] = {
    "p2p": _p2p,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


def _links(tables: Mapping[str, Table], factor: float, num_ranks: int, device: str) -> Links:
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    classes = {kind: LinkClass(fit_ranges(table), table) for kind, table in tables.items()}
    return Links(_backend(device), name, num_ranks, classes, factor)
