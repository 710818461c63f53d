"""A profile of a torch model that nobody ran: captured on `meta`, its times estimated by what its operators do.

The model is ``module:function``, ``zoo:NAME[:small]`` or a Hugging Face config.json. Operators and their names are
those that the profiler measures and the executor runs; what they do is read from the program
(`costmodel.capture.works`), and runs of small ones are priced as one kernel (`fused`). Leaves out operators that read
values, which no capture on `meta` takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodel.architectures.block_copies import SeveralTensors, copy_blocks
from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.estimate import estimated_profile
from costmodel.architectures.fused import fused
from costmodel.calibration import Calibration
from costmodel.errors import UsageError
from costmodel.machines.catalogue import CatalogueDevice
from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import DTYPES, Profile

if TYPE_CHECKING:
    from costmodel.capture.batches import TrainingModel
    from costmodel.capture.capture import Capture
    from costmodel.profiling.options import Options

OF_CONFIGURATION = (
    "it was captured from a configuration, and is divided as trainers of such models do: give the model that trains as "
    "module:function to penstock model or penstock profile to run it"
)
"""Why the executor does not run a plan of a config.json."""


def captured_profile(
    spec: str,
    device: CatalogueDevice,
    microbatch_sizes: Sequence[int],
    precision: str = "",
    sequence: int = 0,
    extra: Mapping[str, object] | None = None,
    calibration: Calibration | None = None,
) -> Profile:
    """Return the estimated profile of a model. Needs torch.

    Parameters
    ----------
    spec : str
        As `costmodel.capture.models.load_model` takes it.
    device : CatalogueDevice
    microbatch_sizes : sequence of int
    precision : str
        One of `PRECISIONS`; empty for the types that the model is built in.
    sequence : int
        Tokens of a sample; 0 for as many as the model's function makes.
    extra : mapping, optional
        Kept in the profile, for its readers.
    calibration : Calibration, optional
        Rates in place of the published ones.

    Raises
    ------
    UsageError
        When the model is built in a type that no device of the catalogue has a rate for.
    """
    from costmodel.capture.works import where_divided
    from costmodel.profiling.dry import counts
    from costmodel.profiling.options import Options

    sizes = tuple(sorted(microbatch_sizes))
    options = Options(spec, sizes, dtype=PRECISIONS[precision].dtype if precision else "", sequence=sequence)
    from_shape = spec.endswith(".json")
    captured, graph = _of_distinct_blocks(options)
    dtype = options.dtype_of(captured.model)
    if dtype not in DTYPES:
        raise UsageError(
            f"{spec} is built in {dtype}, for which no device of the catalogue has a rate; give --precision, one "
            f"of {', '.join(PRECISIONS)}"
        )
    kept, provenance = precision or DTYPES[dtype], counts(captured, options)
    made = estimated_profile(graph, device, kept, dtype, sizes, provenance, extra or {}, calibration)
    origin = replace(made.origin, plan_only=OF_CONFIGURATION if from_shape else "")
    return replace(made, graph=where_divided(graph), origin=origin)


def _counted(options: "Options", model: "TrainingModel") -> "tuple[Capture, OperatorGraph]":
    """Return a model's capture, and its graph whose operators say what they do."""
    from costmodel.capture.works import with_all_works
    from costmodel.profiling.dry import counted_on_meta

    captured, counted = counted_on_meta(options, model=model)
    works = with_all_works(counted, captured, by_structure=options.model.endswith(".json"))
    return captured, fused(works, max(options.microbatch_sizes))


def _of_distinct_blocks(options: "Options") -> "tuple[Capture, OperatorGraph]":
    """Return the same of a model whose blocks that compute the same are captured once, where that shows all of it."""
    from costmodel.capture.node_names import UnknownNames, WholeNames
    from costmodel.capture.repeated_blocks import repeated_blocks
    from costmodel.profiling.dry import load_on_meta

    model = load_on_meta(options)
    repeated = repeated_blocks(model)
    repeated.pass_on(model.module)
    captured, graph = _counted(options, model)
    like = {path: other for path, other in repeated.like.items() if path in repeated.passed}
    order = [name for name, _ in model.module.named_parameters()]
    try:
        return captured, copy_blocks(graph, repeated.lists, like, order, WholeNames(captured.program.counts, like))
    except (SeveralTensors, UnknownNames):
        repeated.compute(model.module)
        return _counted(options, model)
