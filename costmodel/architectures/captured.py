"""A profile of one of the zoo's torch models: captured on `meta`, its times estimated by operations and bytes.

Operators with a weight matrix are priced as that matrix product, others by the bytes they move. Leaves out how they
divide among devices (`Operator.work` stays empty), so strategies that split operators cannot be priced.
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.estimate import estimated_profile
from costmodel.machines.catalogue import CatalogueDevice
from costmodel.model.graph import Operator, OperatorGraph
from costmodel.model.profile import Profile
from costmodel.model.work import Work


def captured_profile(spec: str, device: CatalogueDevice, microbatch_sizes: Sequence[int], precision: str) -> Profile:
    """Return the estimated profile of ``zoo:NAME[:small]``. Needs torch."""
    from costmodel.profiling.dry import dry_profile
    from costmodel.profiling.options import Options

    kept = PRECISIONS[precision]
    dry = dry_profile(Options(spec, tuple(microbatch_sizes), dtype=kept.dtype))
    sizes = dry.microbatch_sizes
    priced = tuple(
        replace(o, work=guessed_work(o, dry.graph, sizes[0], kept.activation_bytes)) for o in dry.graph.operators
    )
    graph = OperatorGraph(dry.graph.name, priced, dry.graph.tensors, dry.graph.parameters)
    made = estimated_profile(graph, device, precision, dry.dtype, sizes, dict(dry.provenance), {})
    return replace(made, graph=dry.graph, origin=replace(made.origin, plan_only=""))


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
