"""What one device does a nanosecond at one precision, and which share of it large kernels reach.

Leaves out shapes: `costmodel.roofline.matmul` and `costmodel.roofline.attention` lower the share by them.
"""

from dataclasses import dataclass
from functools import lru_cache

from costmodel.machines.catalogue import NARROW, CatalogueDevice, check_precision
from costmodel.roofline import tables
from costmodel.roofline.tables import Scenarios

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2, "nvfp4": 2}
"""Bytes of an activation; narrow precisions hold only a matmul's operands in fewer."""
OPERAND_BYTES = {"fp8": 1.0, "nvfp4": 0.5625}
"""Of an operand: NVFP4 has a scale of one byte for 16 values."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a device at a precision.

    Attributes
    ----------
    peak : float
        FLOP a nanosecond of dense matmuls, by the data sheet.
    bandwidth : float
        Bytes a nanosecond of its memory, by the data sheet.
    num_sm : int
        Processors among which the tiles of a matmul are dealt.
    family : str
        Whose attention kernels it runs.
    matmul : Scenarios
        Share of the peak that the best shapes of matmul reach.
    operand_bytes, element_bytes : float, int
        Bytes of an element of a matmul's operands, and of anything else.
    """

    peak: float
    bandwidth: float
    num_sm: int
    family: str
    matmul: Scenarios
    operand_bytes: float
    element_bytes: int


def rates_of(device: CatalogueDevice, precision: str) -> Rates:
    """Return the rates of a device.

    Raises
    ------
    UsageError
        When the device lacks the precision.
    """
    check_precision(device, precision)
    measured = device.fp8_matmul_fraction if precision in NARROW else device.matmul_fraction
    return _rates(device.id, precision, device.tflops[precision], device.memory_gbs, measured)


@lru_cache(maxsize=1024)
def _rates(device_id: str, precision: str, tflops: float, memory_gbs: float, measured: float) -> Rates:
    known = tables.processors()
    num_sm, family = known.get(device_id, known["*"])
    element = ELEMENT_BYTES[precision]
    return Rates(
        peak=tflops * 1000,
        bandwidth=memory_gbs,
        num_sm=num_sm,
        family=family,
        matmul=_matmul_fraction(device_id, precision, measured),
        operand_bytes=OPERAND_BYTES.get(precision, element),
        element_bytes=element,
    )


def _matmul_fraction(device_id: str, precision: str, measured: float) -> Scenarios:
    """Return the row of the device, else the catalogue's fraction with its spread, else the row of any device."""
    table = tables.achievable()
    column = "bf16" if precision == "fp16" else precision
    if (device_id, column) in table:
        return table[device_id, column]
    if not measured or column in ("fp32", "tf32"):
        return table["*", column]
    fast, central, slow = (measured * share for share in table["catalogue", "*"])
    return min(1.0, fast), central, slow
