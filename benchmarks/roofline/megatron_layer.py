"""What each profiled operator of a Megatron-LM GPT does, as `Work`: for holding estimates against measured times.

The attention writes its scores (no flash kernel), dropout is on, biases are added in kernels of their own. Passes over
memory were counted by hand from what each operator must read and write. An operator is a list of works, one for the
forward and one for the backward where both do not follow from one. Leaves out communication inside tensor groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.machines.catalogue import CatalogueDevice
from costmodel.model.work import Work
from costmodel.roofline import Interval, accumulate_ns, estimate

VOCABULARY = 51200
BACKWARD_FACTOR = 1.5
"""What the estimate takes the backward of an elementwise operator to move, against its forward."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPT on one rank: `tensor` ranks share its heads and widths."""

    hidden: int
    heads: int
    sequence: int
    samples: int
    tensor: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One profiled operator: its kind for the table, works of forward and backward, gradient bytes it accumulates."""

    kind: str
    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    accumulated_bytes: int = 0

    def estimates(self, device: CatalogueDevice, precision: str = "fp16") -> tuple[Interval, Interval]:
        """Return the estimates of forward and whole backward."""
        found = [estimate(work, device, precision, 1) for work in self.backward]
        backward = [found_part for e in found for found_part in (e.backward_input, e.backward_weight)]
        return (
            total([estimate(work, device, precision, 1).forward for work in self.forward]),
            total([*backward, accumulate_ns(self.accumulated_bytes, device)]),
        )


def total(intervals: list[Interval]) -> Interval:
    """Return the sum of estimates, each value by itself."""
    return sum(intervals, Interval(0, 0, 0))


def operators(shape: Shape) -> Mapping[str, Measured]:
    """Return by the profile's operator name what it does at this shape."""
    return {**layer(shape), **ends(shape)}


def layer(shape: Shape) -> dict[str, Measured]:
    """Return the operators of one transformer layer."""
    tokens, hidden, inner = shape.sequence * shape.samples, shape.hidden, shape.hidden // shape.tensor
    norm = (Work("norm", "sequence", tokens, outer=hidden),)
    scores = shape.heads // shape.tensor * shape.samples * shape.sequence**2
    after = _elements("bias, dropout, residual", tokens * hidden, 7.5, 4.0)
    return {
        "enc-1st-layernorm": Measured("norm", norm, norm),
        "enc-attention-qkv": _matmul(tokens, hidden, 3 * inner),
        "enc-attention-score": _scores(shape, hidden // shape.heads, shape.sequence),
        "enc-attention-softmax": _elements("softmax", scores, 1.5, 2.0),
        "enc-attention-dropout": _elements("dropout", scores, 2.5, 2.5),
        "enc-attention-context": _scores(shape, shape.sequence, hidden // shape.heads),
        "enc-attention-dense": _matmul(tokens, inner, hidden),
        "enc-post-attention-dropout": after,
        "enc-2nd-layernorm": Measured("norm", norm, norm),
        "enc-MLP-GEMM-1": _matmul(tokens, hidden, 4 * inner),
        "enc-MLP-gelu": _elements("activation", 4 * tokens * inner, 2.0, 4.0),
        "enc-MLP-GEMM-2": _matmul(tokens, 4 * inner, hidden),
        "enc-post-MLP-dropout": after,
    }


def ends(shape: Shape) -> dict[str, Measured]:
    """Return the embedding (with position and dropout) and the head (with the loss in fp32)."""
    tokens, vocabulary = shape.sequence * shape.samples, VOCABULARY // shape.tensor
    embedding = (Work("embedding", "row", tokens, vocabulary, shape.hidden, passes=8),)
    head = Work("matmul", "column", tokens, shape.hidden, vocabulary)
    losses = [Work("loss", "inner", tokens, outer=vocabulary, passes=passes) for passes in (10, 6)]
    return {
        "encoder-embedding": Measured("embedding", embedding, embedding, 2 * vocabulary * shape.hidden),
        "gpt-post-process": Measured("head and loss", (head, losses[0]), (head, losses[1])),
    }


def _matmul(tokens: int, inner: int, outer: int) -> Measured:
    work = (Work("matmul", "column", tokens, inner, outer),)
    return Measured("matmul", work, work)


def _scores(shape: Shape, inner: int, outer: int) -> Measured:
    """Return a matmul between activations, one a head and sample, as a grouped one."""
    groups = shape.heads // shape.tensor * shape.samples
    work = (Work("matmul", "expert", shape.sequence * groups, inner, outer, experts=groups, active=1),)
    return Measured("matmul of scores", work, work)


def _elements(kind: str, elements: int, forward_passes: float, backward_passes: float) -> Measured:
    moved = round(elements * forward_passes), round(elements * backward_passes / BACKWARD_FACTOR)
    forward, backward = (Work("elementwise", "inner", amount, outer=1, passes=1) for amount in moved)
    return Measured(kind, (forward,), (backward,))
