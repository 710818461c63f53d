"""A profile without running anything: graph, floating-point operations and bytes of a model on `meta`.

No tensor has values there, so a model of any size fits. Leaves out times: they are 0, the profile says
``dry_run``, and there is nothing to plan with until it is measured (``penstock profile``) or estimated (``penstock
model``, which makes its profiles of this one).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture, capture
from costmodel.capture.models import load_model
from costmodel.capture.separation import check_separates
from costmodel.errors import InvalidInput
from costmodel.model.graph import OperatorGraph
from costmodel.model.origin import Origin
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.profiling.measure.memory import counted_graph
from costmodel.profiling.options import Options


def load_on_meta(options: Options) -> TrainingModel:
    """Build the model with shapes and no values: all of it on `meta`, or its parameters alone where that fails.

    Raises
    ------
    InvalidInput
        When the model's function reads values of its parameters while it builds.
    """
    wanted = options.model, max(options.microbatch_sizes), options.seed, options.sequence
    try:
        with torch.device("meta"):
            model = load_model(*wanted)
    except InvalidInput:
        try:
            with _parameters_on_meta():
                model = load_model(*wanted)
        except InvalidInput as error:
            raise InvalidInput(f"{error} (its parameters were made on the meta device, without values)") from None
    return options.placed(model, "meta")


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Within the block each parameter goes to `meta` as its module takes it, before anything is written into it."""
    register = nn.Module.register_parameter

    def without_values(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = without_values  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def counted_on_meta(
    options: Options, say: Callable[[str], None] = lambda text: None, model: TrainingModel | None = None
) -> tuple[Capture, OperatorGraph]:
    """Capture a model on `meta` and count its operations and bytes.

    A configuration that torch.export refuses is traced in one run, for plans of it are not run.

    Parameters
    ----------
    options : Options
    say : callable
        Gets one line of text at each step.
    model : TrainingModel, optional
        What `load_on_meta` has made.
    """
    sizes = tuple(sorted(options.microbatch_sizes))
    say("capturing the model on meta")
    model = model or load_on_meta(options)
    check_separates(model)
    captured = capture(model, max(sizes), plan_only=options.model.endswith(".json"))
    if captured.program.remark:
        say(captured.program.remark)
    say("counting operations and bytes")
    return captured, counted_graph(captured, sizes)


def counts(captured: Capture, options: Options) -> dict[str, object]:
    """Return what a profile that nobody measured says of where it comes from."""
    numbers = sum(parameter.numel() for parameter in captured.model.module.parameters())
    return {"torch": torch.__version__, "seed": options.seed, "parameters": numbers}


def dry_profile(options: Options, say: Callable[[str], None] = lambda text: None) -> Profile:
    """Return a profile without times; the device is written down, not used."""
    captured, graph = counted_on_meta(options, say)
    sizes = tuple(sorted(options.microbatch_sizes))
    none = (0,) * len(sizes)
    times = tuple(OperatorTimes(none, none, none, (0.0,) * len(sizes)) for _ in graph.operators)
    device = Device(options.device, "none: a dry run", 0)
    none_run = {"dry_run": True}
    return Profile(
        graph, device, options.dtype_of(captured.model), sizes, times, WholeModelMeasurements(none), None,
        counts(captured, options), none_run, origin=Origin(autocast=options.autocast),
    )  # fmt: skip
