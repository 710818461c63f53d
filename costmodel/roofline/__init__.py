"""Compute times where nothing was measured: a roofline whose efficiency depends on the shape.

Models what an operator takes on a device of the catalogue, as a central value between a lower and an upper one, and
scales measured profiles to other devices and micro-batch sizes. Leaves out communication
(`costmodel.machines.collectives`).
"""

from costmodel.roofline.interval import Interval, OperatorEstimate
from costmodel.roofline.operators import central_ns, estimate
from costmodel.roofline.scaling import scale_profile
from costmodel.roofline.updates import OPTIMIZERS, accumulate_ns, optimizer_step_ns

__all__ = [
    "OPTIMIZERS",
    "Interval",
    "OperatorEstimate",
    "accumulate_ns",
    "central_ns",
    "estimate",
    "optimizer_step_ns",
    "scale_profile",
]
