"""Estimated times of one operator from what it does (`Work`), where nothing was measured.

Kinds bound by memory take their traffic at an achievable share of the bandwidth; matmuls and attention are priced by
shape in their own modules. Every estimate is at least FLOP / peak and bytes / bandwidth. Leaves out: communication,
recompute, gradient accumulation (`costmodel.roofline.updates`), waiting for the host beyond a kernel's start.
"""

from functools import lru_cache
from math import ceil

from costmodel.machines.catalogue import CatalogueDevice, kept_in
from costmodel.model.work import Work
from costmodel.roofline import tables
from costmodel.roofline.attention import attention_ns
from costmodel.roofline.interval import NOTHING, Interval, OperatorEstimate, rounded_up
from costmodel.roofline.matmul import matmul_ns, scenario_ns
from costmodel.roofline.narrow import PRODUCTS
from costmodel.roofline.rates import Rates, rates_of

LOSS_BYTES = 4
"""A loss works in fp32 whatever the precision."""


def estimate(work: Work, device: CatalogueDevice, precision: str, microbatch_size: int) -> OperatorEstimate:
    """Return the estimated times of an operator.

    Parameters
    ----------
    work : Work
        Of one sample.
    device : CatalogueDevice
    precision : str
        One of the catalogue's; narrow ones hold for matmuls, and the rest is in bf16.
    microbatch_size : int
        Samples that it works on at once.

    Returns
    -------
    OperatorEstimate
        Forward, gradient of the input, gradient of the weight, each (low, central, high) in ns.

    Raises
    ------
    UsageError
        When the device lacks the precision.
    """
    return _priced(work, _rates(work, device, precision), microbatch_size)


def central_ns(work: Work, device: CatalogueDevice, precision: str, microbatch_size: int) -> tuple[int, int, int]:
    """Return the central values of `estimate`: forward, gradient of the input, gradient of the weight."""
    rates = _rates(work, device, precision)
    if work.kind in PRODUCTS:
        forward, inputs, weights = (ceil(scenario_ns(rates, *shape, 1)) for shape in _shapes(work, microbatch_size))
        return forward, inputs, weights
    found = _priced(work, rates, microbatch_size)
    return found.forward.central_ns, found.backward_input.central_ns, found.backward_weight.central_ns


def _rates(work: Work, device: CatalogueDevice, precision: str) -> Rates:
    """Return the rates of a kind of work: in narrow precisions all but matmuls run in bf16."""
    return rates_of(device, precision if work.kind in PRODUCTS else kept_in(precision))


@lru_cache(maxsize=65536)
def _priced(work: Work, rates: Rates, samples: int) -> OperatorEstimate:
    if work.kind in PRODUCTS:
        return _matmul(work, rates, samples)
    if work.kind == "attention":
        return OperatorEstimate(*map(rounded_up, attention_ns(rates, work, samples)))
    return _memory_bound(work, rates, samples)


def _matmul(work: Work, rates: Rates, samples: int) -> OperatorEstimate:
    return OperatorEstimate(*(rounded_up(matmul_ns(rates, *shape)) for shape in _shapes(work, samples)))


def _shapes(work: Work, samples: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return rows, inner and outer dimension, and number of a matmul and of both of its gradients."""
    rows, groups = samples * work.tokens, 1
    if work.experts:
        rows *= max(1, work.active)
        groups = max(1, min(work.experts, rows))
        rows = ceil(rows / groups)
    inner, outer = work.inner, work.outer
    return (rows, inner, outer, groups), (rows, outer, inner, groups), (inner, rows, outer, groups)


def _memory_bound(work: Work, rates: Rates, samples: int) -> OperatorEstimate:
    if not work.passes:
        return OperatorEstimate(NOTHING, NOTHING, NOTHING)
    element = LOSS_BYTES if work.kind == "loss" else rates.element_bytes
    kind = "elementwise" if work.kind == "scan" else work.kind
    moved = samples * work.tokens * work.outer * work.passes * element
    table = work.inner * work.outer * element if work.kind == "embedding" else 0
    return OperatorEstimate(
        _traffic(rates, kind, "forward", moved),
        _traffic(rates, kind, "backward_input", moved),
        _traffic(rates, kind, "backward_weight", moved + table),
    )


def _traffic(rates: Rates, kind: str, part: str, size_bytes: int) -> Interval:
    row = tables.traffic().get((kind, part))
    return traffic_ns(rates.bandwidth, row, size_bytes) if row else NOTHING


def traffic_ns(bandwidth: float, row: tables.KernelTraffic, size_bytes: int) -> Interval:
    """Return the time of kernels that only move bytes: their number times the row's factor over the bandwidth."""
    launch = tables.overhead("kernel_ns")
    low, central, high = (
        row.num_kernels * launch[i] + size_bytes * row.factor / (bandwidth * row.fraction[i]) for i in range(3)
    )
    return rounded_up((low, central, high))
