"""The operators of Aceso's GPT: the thirteen of a layer and those around the layers; how they divide, what they keep.

What is kept follows Megatron-LM's layer (Korthikanti et al., 2022, section 4.1: 34 s b h and 5 a s^2 b bytes), not the
archive's ``activations``, which count values that are freed. Leaves out times (`costmodel.importers.aceso`).
"""

from dataclasses import dataclass

EMBEDDING, FINAL, HEAD = "encoder-embedding", "final-layernorm", "gpt-post-process"


@dataclass(frozen=True, slots=True)
class Kind:
    """One operator of a layer: how it divides, what it reads and makes, what it keeps.

    Sizes are in values of (sequence x hidden), `scores` in those of (heads x sequence x sequence). `reads` are operators
    of the layer, ``in`` is what enters it; `keeps` those among them (or itself) whose output stays, `mask` whether a
    byte a value of its output does.
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


LAYER = (
    Kind("enc-1st-layernorm", "norm", "sequence", ("in",), ("in",)),
    Kind("enc-attention-qkv", "matmul", "column", ("enc-1st-layernorm",), ("enc-1st-layernorm",), 3, weight=True),
    Kind("enc-attention-score", "elementwise", "inner", ("enc-attention-qkv",), ("enc-attention-qkv",), scores=True),
    Kind("enc-attention-softmax", "elementwise", "inner", ("enc-attention-score",), ("enc-attention-softmax",),
         scores=True),
    Kind("enc-attention-dropout", "elementwise", "inner", ("enc-attention-softmax",), (), scores=True, mask=True),
    Kind("enc-attention-context", "elementwise", "inner", ("enc-attention-qkv", "enc-attention-dropout"),
         ("enc-attention-qkv", "enc-attention-dropout")),
    Kind("enc-attention-dense", "matmul", "row", ("enc-attention-context",), ("enc-attention-context",), weight=True),
    Kind("enc-post-attention-dropout", "elementwise", "sequence", ("in", "enc-attention-dense"), (), mask=True),
    Kind("enc-2nd-layernorm", "norm", "sequence", ("enc-post-attention-dropout",), ("enc-post-attention-dropout",)),
    Kind("enc-MLP-GEMM-1", "matmul", "column", ("enc-2nd-layernorm",), ("enc-2nd-layernorm",), 4, weight=True),
    Kind("enc-MLP-gelu", "elementwise", "inner", ("enc-MLP-GEMM-1",), ("enc-MLP-GEMM-1",), 4),
    Kind("enc-MLP-GEMM-2", "matmul", "row", ("enc-MLP-gelu",), ("enc-MLP-gelu",), weight=True),
    Kind("enc-post-MLP-dropout", "elementwise", "sequence", ("enc-post-attention-dropout", "enc-MLP-GEMM-2"), (),
         mask=True),
)  # fmt: skip



def aceso_names(layers: int) -> list[str]:
    """Return the operators of a model in Aceso's order; those of a layer carry its number."""
    return [EMBEDDING, *(f"{i}.{kind.name}" for i in range(layers) for kind in LAYER), FINAL, HEAD]
KIND_OF = {kind.name: kind for kind in LAYER}


def kind_of(name: str) -> Kind | None:
    """Return the kind of a layer's operator, None for those around the layers."""
    return KIND_OF.get(name.split(".", 1)[-1])


def split_of(name: str) -> str:
    """Return how tensor parallelism divides an operator."""
    kind = kind_of(name)
    return kind.split if kind else {EMBEDDING: "row", FINAL: "sequence", HEAD: "column"}[name]


def weighted(name: str) -> bool:
    """Whether an operator of a layer is a matmul with weights."""
    kind = kind_of(name)
    return bool(kind and kind.weight)
