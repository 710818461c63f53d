"""What a rank says where its memory does not suffice: what it was at, what it held of what is planned there, a way out.

A GPU's allocator is asked for what tensors hold and what it keeps besides; a CPU has none, so that there the states are
counted and the process's resident memory is told. Leaves out what is planned: figures are the plan file's.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from costmodel.capture.heap import is_out_of_memory
from costmodel.errors import OutOfMemory
from executor.stages.user_parallelize import own_part
from planner.plan import Plan
from planner.plan.lighter import lighter_plans
from planner.plan.replay import plan_schedule
from simulator.actions import Action, Kind
from simulator.validation.order_memory import held_bytes

STATES = {"gradient_copies": "gradients", "master_weights": "optimizer"}
"""Terms of the plan that count with another one among what a rank can be seen to hold."""
TAKES = {Kind.F: "activations", Kind.R: "activations", Kind.B: "gradients and workspace",
         Kind.I: "gradients and workspace", Kind.W: "gradients", Kind.OPT: "optimizer states",
         Kind.REDUCE: "communication buffers"}  # fmt: skip
_ASKED = re.compile(r"ried to allocate ([\d.]+) (bytes|[KMG]iB)")
_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@contextmanager
def explaining_out_of_memory(
    plan: Plan,
    rank: int,
    device: torch.device,
    at: Callable[[], Action | None] = lambda: None,
    held: Callable[[], Mapping[str, int]] = dict,
) -> Iterator[None]:
    """Raise `OutOfMemory` in place of what an allocator says within the block.

    Parameters
    ----------
    plan, rank, device
    at : callable
        Returns what the rank is at.
    held : callable
        Returns the bytes of the rank's states, by term.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory("\n".join(_words(plan, rank, device, at(), held(), str(error)))) from error


def state_bytes(tensors: Iterable[Any], gradients: Iterable[Any], states: Iterable[Any]) -> dict[str, int]:
    """Return what a rank's tensors hold as the plan's terms ``parameters``, ``gradients`` and ``optimizer``."""
    rows = {"parameters": tensors, "gradients": gradients, "optimizer": states}
    return {name: _storage_bytes(row) for name, row in rows.items()}


def _storage_bytes(tensors: Iterable[Any]) -> int:
    storages = [own_part(tensor).untyped_storage() for tensor in tensors if torch.is_tensor(tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _words(
    plan: Plan, rank: int, device: torch.device, at: Action | None, held: Mapping[str, int], said: str
) -> Iterator[str]:
    """Yield what happened, in a line; planned and held; and other plans, one a line."""
    asked = _ASKED.search(said)
    more = f"{_mib(float(asked[1]) * _BYTES[asked[2]])} more were asked for beside " if asked else "it holds "
    where = "before its first action, for parameters"
    if at is not None:
        within = f"stage {at.stage}" + (f", micro-batch {at.microbatch}" if at.microbatch >= 0 else "")
        where = f"at {at} ({within}), for {TAKES.get(at.kind, 'messages')}"
    allocated = torch.cuda.memory_allocated(device) if device.type == "cuda" else None
    yield f"rank {rank} ran out of memory {where}: {more}{_taken(device, allocated)}"
    planned, found = _planned(plan, rank, at), plan.prediction
    yield (
        f"the plan has {_mib(sum(planned.values()))} on this rank there, {_mib(found.peak_memory_bytes[rank])} at its "
        f"peak, at most {_mib(found.peak_memory_upper_bytes[rank])}; by term, planned and held: "
        f"{'; '.join(_by_term(planned, held, allocated))}"
    )
    for lighter in lighter_plans(plan, rank, planned["activations"]):
        yield f"{_mib(lighter.freed_bytes)} less of {lighter.term}: {lighter.command}"


def _taken(device: torch.device, allocated: int | None) -> str:
    """Say what is taken of the device, or by the process."""
    if allocated is None:
        return f"{_mib(_resident_bytes())} that the process holds"
    reserved, (_, total) = torch.cuda.memory_reserved(device), torch.cuda.mem_get_info(device)
    limit = total * torch.cuda.get_per_process_memory_fraction(device)
    return f"{_mib(allocated)} in tensors, {_mib(reserved)} with what the allocator keeps, of {_mib(limit)}"


def _planned(plan: Plan, rank: int, at: Action | None) -> Counter[str]:
    """Return what the plan has on a rank while it runs an action, by term: states, activations, and what else stays."""
    terms = Counter({"parameters": 0, "gradients": 0, "optimizer": 0, "activations": 0})
    for stage in plan.stages:
        for name, size in stage.cost.memory_terms if rank in stage.ranks else ():
            terms[STATES.get(name, name)] += size
    if at is None:
        return terms
    block = next(i for i, ranks in enumerate(plan.blocks) if rank in ranks)
    schedule, costs = plan_schedule(plan), plan.costs()
    static = sum(costs.stages[stage].static_bytes for stage in schedule.graph.stages_of(block))
    while_it_runs = zip(schedule.orders[block], held_bytes(schedule, costs, block), strict=True)
    terms["activations"] = next((size - static for action, size in while_it_runs if action == at), 0)
    return terms


def _by_term(planned: Mapping[str, int], held: Mapping[str, int], allocated: int | None) -> Iterator[str]:
    """Yield the terms; what a rank's states do not hold counts with the activations where an allocator counts it."""
    if held and allocated is not None:
        held = {**held, "activations": allocated - sum(held.values())}
    for name, size in planned.items():
        yield f"{name.replace('_', ' ')} {_mib(size)}" + (f" and {_mib(held[name])}" if name in held else "")


def _resident_bytes() -> int:
    """Return this process's resident memory; 0 where the system has no such file."""
    path = Path("/proc/self/status")
    found = re.search(r"^VmRSS:\s+(\d+)", path.read_text(), re.MULTILINE) if path.exists() else None
    return int(found[1]) * 2**10 if found else 0


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
