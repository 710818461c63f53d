"""Measure a torch model operator by operator: times, what is kept for the backward, sizes, links.

    penstock profile zoo:mmt:small -o profile.json
    penstock profile zoo:uno:small -o profile.json --dry-run          counts and sizes; nothing is run

Resumes from the journal next to the output. Needs torch and the standard library alone.
"""

import argparse

from costmodel.profiling.command import add_arguments
from planner.commands.answer import Answer

__all__ = ["add_arguments", "run"]

WRITES = "penstock-profile"
LOADS = ("costmodel.profiling.run",)
"""Imported while signals wait: torch lets some be lost that come meanwhile."""


def run(args: argparse.Namespace) -> Answer:
    """Profile the model and say what was measured."""
    from costmodel.profiling import command

    body = command.run(args)
    text = (
        f"{body['output']}: {body['operators']} operators, {body['edges']} edges, {body['parameters']} parameters, "
        + (
            f"measured on {body['device']} in {body['seconds']} s; coverage of the step {body['coverage']}"
            if body["coverage"] is not None
            else f"{body['flop']} floating-point operations a sample; nothing was run ({body['seconds']} s)"
        )
    )
    return Answer(body, [text])
