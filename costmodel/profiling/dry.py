"""A profile without running anything: graph, floating-point operations and bytes of a model on `meta`.

No tensor has values there, so a model of any size fits. Leaves out times: they are 0, the profile says
``dry_run``, and there is nothing to plan with until it is measured or estimated.
"""

from collections.abc import Callable

import torch

from costmodel.capture.batches import TrainingModel, move
from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.capture.separation import check_separates
from costmodel.errors import InvalidInput
from costmodel.model.origin import Origin
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.profiling.measure.memory import counted_graph
from costmodel.profiling.options import Options


def load_on_meta(options: Options) -> TrainingModel:
    """Build the model with shapes and no values.

    Raises
    ------
    InvalidInput
        When the model's function reads values while it builds.
    """
    try:
        with torch.device("meta"):
            model = load_model(options.model, max(options.microbatch_sizes), options.seed)
    except InvalidInput as error:
        raise InvalidInput(f"{error} (it was called on the meta device, where tensors have no values)") from None
    return options.cast(move(model, "meta", getattr(torch, options.dtype)))


def dry_profile(options: Options, say: Callable[[str], None] = lambda text: None) -> Profile:
    """Capture a model on `meta` and count.

    Parameters
    ----------
    options : Options
        The device is written down, not used.
    say : callable
        Gets one line of text at each step.
    """
    sizes = tuple(sorted(options.microbatch_sizes))
    say("capturing the model on meta")
    model = load_on_meta(options)
    check_separates(model)
    captured = capture(model, max(sizes))
    if captured.program.remark:
        say(captured.program.remark)
    say("counting operations and bytes")
    graph = counted_graph(captured, sizes)
    none = (0,) * len(sizes)
    times = tuple(OperatorTimes(none, none, none, (0.0,) * len(sizes)) for _ in graph.operators)
    provenance = {"torch": torch.__version__, "seed": options.seed}
    device = Device(options.device, "none: a dry run", 0)
    none_run = {"dry_run": True}
    return Profile(
        graph, device, options.dtype, sizes, times, WholeModelMeasurements(none), None, provenance, none_run,
        origin=Origin(autocast=options.autocast),
    )  # fmt: skip
