"""Plan for N, N - 1, ... hosts in one file, with what moves between neighbouring pages when a host is lost or added.

    penstock book profile.json --cluster cluster.toml --hosts 2,1 --batch 16 -o book.json

A training job that has lost a host goes on with the page for those that are left, from its last checkpoint
(examples/train.py --book). The samples of a batch stay. Hosts are the first ones of the cluster; without --cluster
typical hosts of a described model's device, or one device each of what was profiled, unless --devices says otherwise.
A number of hosts on which nothing fits has no page, and the answer says why. Ctrl-C keeps the pages so far.
"""

import argparse
import time
from typing import TYPE_CHECKING

from planner.commands.answer import INTERRUPTED, Answer, say
from planner.commands.flags import positive
from planner.commands.question import add_question, problem_of

if TYPE_CHECKING:
    from costmodel.machines.cluster import Cluster
    from planner.question.problem import Problem

WRITES = "penstock-book"
KEEPS_ITS_BEST = True
"""Signals wait from the command's start: the pages that are made are written all the same."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_question(parser, "of each page (default 10)", "of the largest number of hosts, which share them equally")
    parser.add_argument(
        "--hosts", type=_numbers, required=True, metavar="N,N-1,...", help="a page for each, in this order"
    )
    parser.add_argument("-o", "--output", required=True, metavar="book.json")


def _numbers(text: str) -> tuple[int, ...]:
    """Read different numbers of hosts."""
    found = tuple(map(positive, text.split(",")))
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"found {text!r}; each number of hosts is given once, as in 4,3,2")
    return found


def run(args: argparse.Namespace) -> Answer:
    """Plan page by page and write the book; Ctrl-C and SIGTERM wait from here on until there is a page to keep."""
    from planner.interrupts import deferred_signals

    with deferred_signals():
        return _run(args)


def _run(args: argparse.Namespace) -> Answer:
    from costmodel.machines.cluster import read_cluster
    from planner.front import make_plan
    from planner.plan.book import write_book
    from planner.report.book_pages import BookPages

    cluster = read_cluster(args.cluster) if args.cluster else None
    on_host = _devices_on_host(args, max(args.hosts), cluster)
    made = BookPages(lambda hosts: _problem(args, hosts, cluster, on_host), make_plan)
    made.make(args.hosts, say)
    write_book(args.output, made.pages)
    return Answer(made.to_json(), made.text(), INTERRUPTED if made.interrupted else 0)


def _problem(args: argparse.Namespace, hosts: int, cluster: "Cluster | None", on_host: int) -> "Problem":
    """Return the problem on some hosts: the first ones of a cluster, or as many alike."""
    from dataclasses import replace

    from costmodel.machines.changed_cluster import with_hosts

    start, own = time.perf_counter(), with_hosts(cluster, hosts) if cluster else None
    devices = own.num_devices if own else hosts * on_host
    return replace(problem_of(argparse.Namespace(**{**vars(args), "devices": devices}), start), cluster=own)


def _devices_on_host(args: argparse.Namespace, largest: int, cluster: "Cluster | None") -> int:
    """Return how many devices each host has, where no cluster file says it (0 where one does)."""
    from costmodel.errors import UsageError
    from costmodel.machines.changed_cluster import with_hosts
    from costmodel.machines.typical import typical_host_devices
    from costmodel.model.profile import read_profile

    most = with_hosts(cluster, largest).num_devices if cluster else 0
    if cluster and args.devices not in (None, most):
        raise UsageError(
            f"--devices {args.devices}: the first {largest} hosts of {args.cluster} have {most}, all of which a page "
            "uses; leave --devices out"
        )
    if cluster:
        return 0
    if args.devices and args.devices % largest:
        raise UsageError(
            f"{args.devices} devices do not divide into {largest} hosts; give --devices a multiple of {largest}, or a "
            "--cluster file that says what each host has"
        )
    profile = read_profile(args.profiles[0])
    name = "" if profile.links else profile.device.catalogue
    typical = typical_host_devices(name) if name else 1
    found = int(args.devices) // largest if args.devices else typical
    if name and largest > 1 and found != typical:
        raise UsageError(
            f"{args.devices} devices on {largest} hosts are {found} each, and a typical host of {name} has {typical}; "
            "leave --devices out, or give a --cluster file"
        )
    return found
