"""Time of what lives in no operator: the optimizer's step and the accumulation of gradients.

Both move memory; Muon multiplies matrices, too. Leaves out: sharded states (give the bytes of the shard), steps on
the host, clipping by a norm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from costmodel.errors import UsageError
from costmodel.machines.catalogue import CatalogueDevice
from costmodel.roofline import tables
from costmodel.roofline.interval import NOTHING, Interval, rounded_up
from costmodel.roofline.operators import traffic_ns
from costmodel.roofline.rates import ELEMENT_BYTES, rates_of

MASTER_BYTES = 4
"""Optimizer states, and in mixed precision the master copy of a parameter, are fp32."""


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """What an optimizer keeps of each parameter and does with it in a step.

    Attributes
    ----------
    copies : int
        Numbers kept.
    width : int
        Bytes of each; 0 for fp32, or the parameter's own precision where it trains in that.
    passes : int
        Reads of a gradient in fp32 beyond the one of the update.
    orthogonal : bool
        Whether updates of matrices are made orthogonal by `ITERATIONS` of products.
    """

    copies: int
    width: int = 0
    passes: int = 0
    orthogonal: bool = False

    def state_bytes(self, full: int) -> int:
        """Bytes a parameter, `full` being those of a number that is kept in full."""
        return self.copies * (self.width or full)


OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "none": OptimizerKind(0),
    "sgd": OptimizerKind(0),
    "momentum": OptimizerKind(1),
    "adam": OptimizerKind(2),
    "adam-16bit": OptimizerKind(2, 2),  # DeepSeek-V3, 2024, section 3.3.2; Megatron-LM core's precision-aware optimizer
    "adam-8bit": OptimizerKind(2, 1),  # Dettmers et al., 8-bit optimizers via block-wise quantization, 2022
    "lion": OptimizerKind(1),  # Chen et al., Symbolic discovery of optimization algorithms, 2023
    "adafactor": OptimizerKind(0, passes=3),  # Shazeer and Stern, 2018: means of rows and columns, no momentum
    "muon": OptimizerKind(1, orthogonal=True),  # Jordan et al., 2024
}
"""Left out: a few numbers a row, column or block; and that Muon's users step embeddings and norms by Adam."""
ITERATIONS = 5
"""Newton-Schulz steps of Muon (Jordan et al., Muon: an optimizer for hidden layers, 2024)."""


def orthogonal_flop(shape: Sequence[int]) -> int:
    """Return the FLOP by which Muon makes an update of this shape orthogonal: per step X X', its square, and B X."""
    if len(shape) < 2:
        return 0
    short, long = sorted((shape[-2], shape[-1]))
    return ITERATIONS * prod(shape[:-2]) * (4 * short * short * long + 2 * short**3)


def optimizer_step_ns(
    parameter_bytes: int, device: CatalogueDevice, optimizer: str = "adam", precision: str = "bf16", flop: int = 0
) -> Interval:
    """Return the time of one optimizer step over parameters, given their bytes in their working precision.

    `flop` are those of products that it needs (`orthogonal_flop`), in bf16 where the device has it.

    Gradient and parameter, states and (in mixed precision) master copy are read, all but the gradient written.

    Raises
    ------
    UsageError
        On an unknown optimizer or precision.
    """
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"optimizer {optimizer!r}; allowed are {', '.join(OPTIMIZERS)}")
    if precision not in ELEMENT_BYTES:
        raise UsageError(f"precision {precision!r}; allowed are {', '.join(ELEMENT_BYTES)}")
    if optimizer == "none" or not parameter_bytes:
        return NOTHING
    element = ELEMENT_BYTES[precision]
    kind = OPTIMIZERS[optimizer]
    states = 2 * kind.state_bytes(MASTER_BYTES) + kind.passes * MASTER_BYTES
    weights = 2 * MASTER_BYTES + element if element < MASTER_BYTES else 2 * element
    moved = parameter_bytes * (element + weights + states) // element
    found = traffic_ns(device.memory_gbs, tables.traffic()["optimizer", "step"], moved)
    if not flop:
        return found
    rates = rates_of(device, "bf16" if "bf16" in device.tflops else precision)
    low, central, high = (flop / (rates.peak * share) for share in rates.matmul)
    return found + rounded_up((low, central, high))


def accumulate_ns(gradient_bytes: int, device: CatalogueDevice) -> Interval:
    """Return the time to add gradients, given their bytes, to earlier ones: two reads, one write."""
    if not gradient_bytes:
        return NOTHING
    return traffic_ns(device.memory_gbs, tables.traffic()["accumulate", "step"], 3 * gradient_bytes)
