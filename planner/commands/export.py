"""Write a plan as files that another trainer takes.

    penstock export plan.json --to torchtitan -o torchtitan/

torch-csv: torch's compute_only CSV of the orders, and what each stage holds. torchtitan: the same, the names of each
model part, and a function for a recipe. megatron: flags and the pipeline layout. deepspeed: ds_config.json, and a
PipelineModule with the stages' bounds. What a plan says beyond these files is listed as left to you. What a trainer
cannot do is refused by name, with the nearest that it can; a plan's runs_on lists who takes it.
"""

import argparse

from planner.commands.answer import Answer

FORMS = ("torch-csv", "torchtitan", "megatron", "deepspeed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan file")
    parser.add_argument("--to", required=True, choices=FORMS, metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder for the files; made if need be")


def run(args: argparse.Namespace) -> Answer:
    """Export, write and name the files."""
    from pathlib import Path

    from costmodel.errors import UsageError
    from costmodel.files import write_text
    from planner.export.forms import export
    from planner.export.left_to_user import left_to_you
    from planner.plan import read_plan

    if not args.output:
        raise UsageError("-o names no folder; give one, as in -o out/")
    plan = read_plan(args.plan)
    texts = export(plan, args.to)
    folder = Path(args.output)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder}: there is a file of that name; name a folder")
    for name, text in texts.items():
        write_text(folder / name, text)
    paths, left = [str(folder / name) for name in texts], left_to_you(plan, args.to)
    said = [f"left to you, as these files cannot say it: {', '.join(left)}"] if left else []
    return Answer({"to": args.to, "files": paths, "left_to_you": left}, [*paths, *said])
