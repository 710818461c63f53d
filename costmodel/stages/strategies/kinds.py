"""Kinds of work on the device, each of which a trainer has kernels of its own for."""

from costmodel.model.graph import Operator

KINDS = {"matmul": "matmul", "convolution": "matmul", "attention": "attention"}


def term_of(operator: Operator) -> str:
    """Return the kind of work on the device that an operator does; products of experts are grouped."""
    work = operator.work
    if work is None:
        return "memory"
    return "grouped" if work.experts and work.kind in KINDS else KINDS.get(work.kind, "memory")
