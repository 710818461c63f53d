"""The operators of Aceso's GPT: the thirteen of a layer and those around the layers; what they read and keep.

What is kept follows Megatron-LM's layer (Korthikanti et al., 2022, section 4.1: 34 s b h and 5 a s^2 b bytes), not the
archive's ``activations``, which count values that are freed. The last dropout holds the
residual that it adds, which the second norm keeps anyhow unless its forward runs again. Leaves out times
(`benchmarks.peer_problems.aceso.profile`).
"""

from dataclasses import dataclass

EMBEDDING, FINAL, HEAD = "encoder-embedding", "final-layernorm", "gpt-post-process"


ENTERS = "in"
"""What enters a layer, among the names of its operators."""


@dataclass(frozen=True, slots=True)
class LayerOperator:
    """One operator of a layer: how it divides, what it reads and makes, what it keeps.

    Attributes
    ----------
    name, kind, split : str
        Kind and split are those of `costmodel.model.work.Work`.
    reads, keeps : tuple of str
        Operators of the layer (or `ENTERS`): whose output it reads, and whose (its own, too) it keeps.
    size : int
        Of its output, in values of (sequence x hidden), with `scores` in those of (heads x sequence x sequence).
    mask : bool
        Whether it keeps a byte for each value of its output, as a dropout does.
    weight : bool
    """

    name: str
    kind: str
    split: str
    reads: tuple[str, ...]
    keeps: tuple[str, ...]
    size: int = 1
    scores: bool = False
    mask: bool = False
    weight: bool = False


_QKV, _SOFTMAX, _DROPOUT = "enc-attention-qkv", "enc-attention-softmax", "enc-attention-dropout"
_CONTEXT, _DENSE, _BETWEEN = "enc-attention-context", "enc-attention-dense", "enc-post-attention-dropout"
_WIDE, _GELU, _NARROW = "enc-MLP-GEMM-1", "enc-MLP-gelu", "enc-MLP-GEMM-2"
_FIRST, _SECOND, _SCORE = "enc-1st-layernorm", "enc-2nd-layernorm", "enc-attention-score"

LAYER = (
    LayerOperator(_FIRST, "norm", "sequence", (ENTERS,), (ENTERS,)),
    LayerOperator(_QKV, "matmul", "column", (_FIRST,), (_FIRST,), 3, weight=True),
    LayerOperator(_SCORE, "elementwise", "inner", (_QKV,), (_QKV,), scores=True),
    LayerOperator(_SOFTMAX, "elementwise", "inner", (_SCORE,), (_SOFTMAX,), scores=True),
    LayerOperator(_DROPOUT, "elementwise", "inner", (_SOFTMAX,), (), scores=True, mask=True),
    LayerOperator(_CONTEXT, "elementwise", "inner", (_QKV, _DROPOUT), (_QKV, _DROPOUT)),
    LayerOperator(_DENSE, "matmul", "row", (_CONTEXT,), (_CONTEXT,), weight=True),
    LayerOperator(_BETWEEN, "elementwise", "sequence", (ENTERS, _DENSE), (), mask=True),
    LayerOperator(_SECOND, "norm", "sequence", (_BETWEEN,), (_BETWEEN,)),
    LayerOperator(_WIDE, "matmul", "column", (_SECOND,), (_SECOND,), 4, weight=True),
    LayerOperator(_GELU, "elementwise", "inner", (_WIDE,), (_WIDE,), 4),
    LayerOperator(_NARROW, "matmul", "row", (_GELU,), (_GELU,), weight=True),
    LayerOperator("enc-post-MLP-dropout", "elementwise", "sequence", (_BETWEEN, _NARROW), (_BETWEEN,), mask=True),
)
OPERATOR_OF = {operator.name: operator for operator in LAYER}


def aceso_names(layers: int) -> list[str]:
    """Return the operators of a model in Aceso's order; those of a layer carry its number."""
    return [EMBEDDING, *(f"{i}.{operator.name}" for i in range(layers) for operator in LAYER), FINAL, HEAD]


def base_name(name: str) -> str:
    """Return what the archive calls an operator, whose layer it does not number."""
    return name.split(".", 1)[-1]


def split_of(name: str) -> str:
    """Return how tensor parallelism divides an operator."""
    ends = {EMBEDDING: "row", FINAL: "sequence", HEAD: "column"}
    return ends.get(name) or OPERATOR_OF[base_name(name)].split


def weighted(name: str) -> bool:
    """Whether an operator of a layer is a matmul with weights."""
    known = OPERATOR_OF.get(base_name(name))
    return bool(known and known.weight)
