"""A profile of a torch model that nobody ran: captured on `meta`, its times estimated by operations and bytes.

The model is ``module:function``, ``zoo:NAME[:small]`` or a Hugging Face config.json. Operators and their names are
those that the profiler measures and the executor runs. Those with a weight matrix are priced as that matrix product,
others by the bytes they move. Leaves out how they divide among devices (`Operator.work` stays empty).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.estimate import estimated_profile
from costmodel.calibration import Calibration
from costmodel.errors import UsageError
from costmodel.machines.catalogue import CatalogueDevice
from costmodel.model.graph import Operator, OperatorGraph
from costmodel.model.profile import Profile
from costmodel.model.work import Work
from costmodel.roofline.scaling import PRECISIONS as PRECISION_OF_DTYPE


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
    from costmodel.profiling.dry import counted_on_meta, counts
    from costmodel.profiling.options import Options

    sizes = tuple(sorted(microbatch_sizes))
    options = Options(spec, sizes, dtype=PRECISIONS[precision].dtype if precision else "", sequence=sequence)
    captured, counted = counted_on_meta(options)
    dtype = options.dtype_of(captured.model)
    if dtype not in PRECISION_OF_DTYPE:
        raise UsageError(
            f"{spec} is built in {dtype}, for which no device of the catalogue has a rate; give --precision, one "
            f"of {', '.join(PRECISIONS)}"
        )
    kept, provenance = precision or PRECISION_OF_DTYPE[dtype], counts(captured, options)
    priced = tuple(
        replace(o, work=guessed_work(o, counted, sizes[0], PRECISIONS[kept].activation_bytes))
        for o in counted.operators
    )
    graph = OperatorGraph(counted.name, priced, counted.tensors, counted.parameters)
    made = estimated_profile(graph, device, kept, dtype, sizes, provenance, extra or {}, calibration)
    return replace(made, graph=counted, origin=replace(made.origin, plan_only=""))


def guessed_work(operator: Operator, graph: OperatorGraph, size: int, element_bytes: int) -> Work:
    """Return a work with the operator's operations, or the bytes of its output written and read once."""
    shapes = [graph.parameter_index[name].shape for name in operator.parameters]
    matrix = next((shape for shape in shapes if len(shape) > 1), None)
    numbers = max(1, operator.output_bytes[0] // size // element_bytes)
    if not operator.flop:
        return Work("elementwise", "whole", numbers, outer=1, passes=3)
    outer = matrix[0] if matrix else 64
    inner = 1
    for length in matrix[1:] if matrix else (64,):
        inner *= length
    return Work("matmul", "whole", max(1, operator.flop // (2 * inner * outer)), inner=inner, outer=outer)
