"""Time of what lives in no operator: the optimizer's step and the accumulation of gradients.

Both only move memory. Leaves out: sharded states (give the bytes of the shard), steps on the host, clipping by a norm.
"""

from costmodel.errors import UsageError
from costmodel.machines.catalogue import CatalogueDevice
from costmodel.roofline import tables
from costmodel.roofline.interval import NOTHING, Interval
from costmodel.roofline.operators import traffic_ns
from costmodel.roofline.rates import ELEMENT_BYTES

MASTER_BYTES = 4
"""Optimizer states, and in mixed precision the master copy of a parameter, are fp32."""


NUM_STATES = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2}


def optimizer_step_ns(
    parameter_bytes: int, device: CatalogueDevice, optimizer: str = "adam", precision: str = "bf16"
) -> Interval:
    """Return the time of one optimizer step over parameters, given their bytes in their working precision.

    Gradient and parameter, states and (in mixed precision) master copy are read, all but the gradient written.

    Raises
    ------
    UsageError
        On an unknown optimizer or precision.
    """
    if optimizer not in NUM_STATES:
        raise UsageError(f"optimizer {optimizer!r}; allowed are {', '.join(NUM_STATES)}")
    if precision not in ELEMENT_BYTES:
        raise UsageError(f"precision {precision!r}; allowed are {', '.join(ELEMENT_BYTES)}")
    if optimizer == "none" or not parameter_bytes:
        return NOTHING
    element = ELEMENT_BYTES[precision]
    states = 2 * MASTER_BYTES * NUM_STATES[optimizer]
    weights = 2 * MASTER_BYTES + element if element < MASTER_BYTES else 2 * element
    moved = parameter_bytes * (element + weights + states) // element
    return traffic_ns(device.memory_gbs, tables.traffic()["optimizer", "step"], moved)


def accumulate_ns(gradient_bytes: int, device: CatalogueDevice) -> Interval:
    """Return the time to add gradients, given their bytes, to earlier ones: two reads, one write."""
    if not gradient_bytes:
        return NOTHING
    return traffic_ns(device.memory_gbs, tables.traffic()["accumulate", "step"], 3 * gradient_bytes)
