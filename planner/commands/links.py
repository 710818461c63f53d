"""Measure latency and bandwidth between ranks: local processes, or under torchrun its own.

    penstock links -o links.json --ranks 2

What is measured are transfers and collectives by range of sizes, in the way that training makes them.
"""

import argparse
from typing import Any

from costmodel.profiling.links_command import add_arguments
from planner.commands.answer import Answer
from planner.report.summary.text import Table

__all__ = ["add_arguments", "run"]

WRITES = "penstock-links"
LOADS = ("costmodel.profiling.links",)
"""Imported while signals wait: torch lets some be lost that come meanwhile."""


def run(args: argparse.Namespace) -> Answer:
    """Measure and show each class of transfers by size range."""
    from costmodel.profiling import links_command

    body: dict[str, Any] = links_command.run(args)
    rows = [
        (name, str(r["min_bytes"]), f"{r['latency_ns'] / 1000:.1f}", f"{r['bandwidth_gbs']:.3f}")
        for name, link in body["classes"].items()
        for r in link["ranges"]
    ]
    title = f"{body['output']}: {body['num_ranks']} ranks, {body['backend']} on {body['device']}"
    if "overlap_slowdown" in body:
        title += f"; compute takes {body['overlap_slowdown']:.2f} times as long during a sum over all"
    return Answer(body, [Table(("class", "from bytes", "latency us", "GB/s"), rows, title)])
