"""Does this plan belong to this model, this number of processes and this device? Asked before any communication.

What is wrong with the plan itself says the independent checker, as ``penstock validate --model`` does.
"""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from costmodel.capture.capture import Capture, operator_graph
from costmodel.capture.works import with_works
from costmodel.errors import DoesNotMatch, ReadableButWrong
from planner.checker import check_plan, executor_problems, tied_problems
from planner.plan import Plan
from planner.plan.book import Book, read_plan_or_book


def place_in(group: Any = None) -> tuple[int, int]:
    """Return (rank, number of ranks) in a group of the user's, else as torch or torchrun says; 0 of 1 without any."""
    if group is not None:
        return dist.get_rank(group), dist.get_world_size(group)
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def planned_for_here(plan: Plan | Book | str | Path, group: Any = None) -> Plan:
    """Return a plan, read from its file if need be; of a book that of the page for as many ranks as there are here."""
    found = plan if isinstance(plan, Plan | Book) else read_plan_or_book(plan)
    return found.for_ranks(place_in(group)[1]) if isinstance(found, Book) else found


def check_world(plan: Plan, group: Any = None) -> None:
    """Refuse a plan for another number of ranks than there are, and a group that this process is no member of.

    Raises
    ------
    DoesNotMatch
    """
    needed, (rank, world) = len(plan.orders), place_in(group)
    if group is not None and (rank < 0 or world != needed):
        found = f"has {world}" if rank >= 0 else "does not hold this process"
        raise DoesNotMatch(f"the plan is for {needed} ranks, the group {found}; give a group of {needed} ranks")
    if world != needed:
        raise DoesNotMatch(
            f"the plan is for {needed} ranks, {world} {'is' if world == 1 else 'are'} running; "
            f"start it with torchrun --nproc-per-node {needed}"
        )


def check_hosts(plan: Plan, rank: int) -> None:
    """Refuse a layout of hosts other than the planned one; a plan for one host may run on several.

    The launcher says how it has laid out the ranks (torchrun: ``GROUP_RANK`` is the host, ``LOCAL_RANK`` the place
    on it); one that says nothing is not asked.

    Raises
    ------
    DoesNotMatch
        Names where the plan has this rank and where the launcher has put it.
    """
    on = plan.cluster.seats[: len(plan.orders)]
    number = {host: i for i, host in enumerate(dict.fromkeys(on))}
    seats = [(number[host], on[:rank].count(host)) for rank, host in enumerate(on)]
    used = [on.count(host) for host in number]
    if len(used) == 1 or "GROUP_RANK" not in os.environ:
        return
    host, place = seats[rank]
    found = tuple(
        int(os.environ[name]) for name in ("GROUP_RANK", "LOCAL_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    if found != (host, place, len(used), used[host]):
        raise DoesNotMatch(
            f"the plan has rank {rank} on host {host} of {len(used)}, as number {place} of {used[host]} there; the "
            f"launcher has put it on host {found[0]} of {found[2]}, as number {found[1]} of {found[3]}: start "
            f"torchrun --nnodes {len(used)} in the order of the cluster's hosts, with --nproc-per-node "
            f"{' and '.join(map(str, dict.fromkeys(used)))}, or plan for one host"
        )


def check_target(plan: Plan, *, divides: bool = False) -> None:
    """Refuse a plan that uses what the executor does not run, whomever it was made for; with `parallelize=` or without.

    Raises
    ------
    DoesNotMatch
        Names the stage and what of its configuration.
    """
    for problem in executor_problems(plan, divides=divides):
        raise DoesNotMatch(f"{problem.place} {problem.message}")


def check_gate(plan: Plan, capture: Capture) -> None:
    """Refuse another model than the planned one, and a plan with which something would go wrong.

    Raises
    ------
    DoesNotMatch
        When the fingerprints differ; says what else does.
    ReadableButWrong
        Names the first problem that the checker finds with the model's graph.
    """
    size = capture.static_batch or plan.batch.microbatch_size
    graph = operator_graph(capture, (size,))
    if graph.fingerprint != plan.fingerprint:
        raise DoesNotMatch(
            f"the plan is for the model {plan.model_name} with {plan.num_operators} operators (fingerprint "
            f"{plan.fingerprint[:12]}), {capture.model.name} has {len(graph.operators)} ({graph.fingerprint[:12]}); "
            "run the plan with the model that was profiled, or profile and plan this one"
        )
    if capture.static_batch not in (None, plan.batch.microbatch_size):
        raise DoesNotMatch(
            f"the model fixes its batch when it is captured ({capture.static_batch}), and the plan's micro-batches "
            f"hold {plan.batch.microbatch_size}"
        )
    if capture.static_batch is not None and any(stage.microbatch_multiple > 1 for stage in plan.stages):
        raise DoesNotMatch("the model fixes its batch when it is captured, so no stage can take several micro-batches")
    if any(stage.config.tensor > 1 for stage in plan.stages):
        graph = with_works(graph, capture)  # which layers lanes divide
    problems = check_plan(plan, graph) or tuple(tied_problems(plan, graph))
    if problems and problems[0].kind == "target":
        raise DoesNotMatch(f"{problems[0].place} {problems[0].message}")
    if problems:
        raise ReadableButWrong(
            f"the plan cannot run: {problems[0].place}: {problems[0].message} ({len(problems)} such problems; "
            "penstock validate --model lists them): plan the model again"
        )


def check_device(plan: Plan, rank: int, device: torch.device) -> None:
    """Refuse a device of another kind than the planned one, or with too little memory.

    Raises
    ------
    DoesNotMatch
    """
    planned = plan.cluster.device_of(rank)
    if planned.type != device.type:
        raise DoesNotMatch(
            f"the plan puts rank {rank} on a device of type {planned.type} ({planned.name}), this one is "
            f"{device.type}; profile on this kind of device, or choose it by --device {planned.type}"
        )
    if device.type == "cuda":
        needed, there = plan.prediction.peak_memory_bytes[rank], torch.cuda.get_device_properties(device).total_memory
        if needed > there:
            raise DoesNotMatch(
                f"the plan needs {needed} bytes on rank {rank}, its device has {there}; plan with --memory-limit"
            )
