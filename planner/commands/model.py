"""Describe a model without running it and without a GPU, its times estimated on a catalogue device.

    penstock model llama3-70b -o profile.json --device h100-sxm-80
    penstock model config.json -o profile.json          a Hugging Face config.json
    penstock model my_module:build -o profile.json      a model of your own, captured without weights (needs torch)

NAME: an id of the table of models, a config.json, module:function, zoo:NAME[:small], nasnet or random:N:SEED. A
config.json of a model type on the list is described by the standard library alone; any other is captured where torch
and transformers are installed.
"""

import argparse
import time

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.command import DEFAULT_DEVICE, SOURCES
from costmodel.errors import OtherAtEachSize
from costmodel.stages.strategies.trainers import MEGATRON, habits_of, trainers
from planner.commands.answer import Answer, say
from planner.commands.flags import positive

WRITES = "penstock-profile"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("model", metavar="NAME", help="what to describe")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="profile to write")
    parser.add_argument(
        "--device",
        default=DEFAULT_DEVICE,
        metavar="ID|FILE",
        help="catalogue id of the device, or a file that describes it (.toml; docs/cluster.md; default %(default)s)",
    )
    parser.add_argument(
        "--microbatch-sizes",
        type=sizes,
        default=(),
        metavar="1,2,4",
        help="samples a micro-batch (default: 1,2,4, and 8 to 32 while a device holds what the model keeps of them)",
    )
    parser.add_argument(
        "--sequence",
        type=positive,
        default=0,
        metavar="N",
        help="tokens of a sample (default: the model's, at most 4096)",
    )
    parser.add_argument(
        "--precision",
        choices=tuple(PRECISIONS),
        default="",
        help="of training (default: bf16; of a module:function the types that it is built in)",
    )
    parser.add_argument(
        "--source",
        choices=SOURCES,
        default="",
        help="take the model from its shape, or capture its torch module (default: described where both exist)",
    )
    parser.add_argument(
        "--lora-rank",
        type=positive,
        default=0,
        metavar="R",
        help="freeze a described model and train low-rank adapters of its blocks' linear layers",
    )
    parser.add_argument(
        "--trainer", default="", metavar="NAME", help=f"whose habits plans are priced by, of {', '.join(trainers())}"
    )
    parser.add_argument("--calibration", metavar="FILE", help="constants of your own machines, from penstock fit")


def sizes(text: str) -> tuple[int, ...]:
    """Read micro-batch sizes, rising and without repeats."""
    return tuple(sorted({positive(part) for part in text.split(",")}))


def run(args: argparse.Namespace) -> Answer:
    """Describe the model, write its profile and say what it holds."""
    from costmodel.architectures.command import make
    from costmodel.calibration import read_calibration
    from costmodel.model.profile import write_profile

    started = time.perf_counter()
    habits_of(args.trainer or MEGATRON)  # an unknown name is refused before anything is written
    calibration = read_calibration(args.calibration) if args.calibration else None
    known = args.sequence, args.precision, args.trainer, calibration, args.source, args.lora_rank
    try:
        profile, facts = make(args.model, args.device, args.microbatch_sizes, *known)
    except OtherAtEachSize:
        if args.microbatch_sizes:
            raise
        profile, facts = make(args.model, args.device, (1,), *known)
        say(f"penstock model: {args.model} computes something else at each micro-batch size: it has 1 alone here")
    write_profile(args.output, profile)
    graph = profile.graph
    body: dict[str, object] = {
        "output": args.output,
        "model": graph.name,
        "operators": len(graph.operators),
        "tensors": len(graph.tensors),
        "flop": sum(operator.flop for operator in graph.operators),
        **facts,
        "device": profile.device.catalogue,
        "microbatch_sizes": list(profile.microbatch_sizes),
        "step_ns": list(profile.whole.step_ns),
        "estimated": True,
        "seconds": round(time.perf_counter() - started, 3),
    }
    filled = facts.get("defaults")
    if isinstance(filled, list) and filled:
        say(f"penstock model: {args.model} leaves out {', '.join(filled)}: the class's defaults were taken")
    return Answer(body, [_line(body)])


def _line(body: dict[str, object]) -> str:
    return (
        f"{body['output']}: {body['operators']} operators, {body['parameters']} parameters, {body['flop']} "
        f"floating-point operations a sample; times are estimates ({body['seconds']} s)"
    )
