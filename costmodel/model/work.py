"""What an operator does for one sample, apart from any device.

Enough to price it where nothing was measured, and to say how it divides among devices. A measured profile need not
say it; then only strategies that leave operators whole can be priced. Leaves out times (`costmodel.roofline`) and what
dividing costs (`costmodel.stages.strategies`).
"""

from dataclasses import dataclass
from typing import Annotated

from costmodel.codec import UNSAID, Json
from costmodel.errors import InvalidInput

KINDS = ("matmul", "convolution", "attention", "norm", "elementwise", "scan", "embedding", "loss")
SPLITS = ("whole", "sequence", "column", "row", "inner", "expert")
"""How tensor parallelism (Shoeybi et al., 2019; Korthikanti et al., 2022) divides an operator and lays out its output.

``column``: the weight's outer dimension; output divided (a norm over all of it sums its statistics). ``row``: its inner
dimension (an embedding: its vocabulary); output a sum over the group, laid out as ``sequence``. ``inner``: no weight of
its own among divided values (attention's core by heads, activation functions, a loss over a divided vocabulary).
``sequence``: each device does all of it, or its share of the sequence under sequence parallelism. ``expert``: by
experts over the expert-parallel group, and each expert's inner width over the tensor-parallel one. ``whole``: always
all of it (the router of a mixture of experts).
"""


@dataclass(frozen=True, slots=True)
class Work:
    """One operator's forward for one sample.

    Attributes
    ----------
    kind : str
        One of `KINDS`. A convolution is the matrix product of its windows, which overlap; a scan goes along the
        sequence one element after the other.
    split : str
        One of `SPLITS`.
    tokens : int
        Rows of its output: tokens of a text, patches of an image.
    inner, outer : int
        A matmul, or convolution, is (tokens x inner) x (inner x outer). An embedding has `inner` rows of width `outer`.
        A norm, an elementwise operator and a loss have width `outer`.
    passes : int
        How often elements of (tokens x outer) are read or written, for kinds bound by memory; 0 for what runs no
        kernel of its own: a view, or a part of one that stands with another operator.
    heads, kv_heads, context : int
        Of attention: query heads, key and value heads, keys that a query sees at most (as many as `tokens` for
        self-attention); `inner` is then a head's width of queries and keys, `outer` that of values.
    causal : bool
        Whether attention skips the masked half.
    experts, active : int
        Of a matmul of experts: how many there are, and how many take each token.
    groups, reached : int
        Of such a matmul: groups of experts that lie side by side, and how many of them a token's experts may be in; 0
        where any may take it.
    parts : int
        Into how many parts it is known to divide at most, which tensor degrees must divide; 0 where any will do.
    """

    kind: Annotated[str, Json(rules={"enum": KINDS})]
    split: Annotated[str, Json(rules={"enum": SPLITS})]
    tokens: int
    inner: Annotated[int, UNSAID] = 0
    outer: Annotated[int, UNSAID] = 0
    passes: Annotated[int, UNSAID] = 2
    heads: Annotated[int, UNSAID] = 0
    kv_heads: Annotated[int, UNSAID] = 0
    context: Annotated[int, UNSAID] = 0
    causal: Annotated[bool, UNSAID] = False
    experts: Annotated[int, UNSAID] = 0
    active: Annotated[int, UNSAID] = 0
    groups: Annotated[int, UNSAID] = 0
    reached: Annotated[int, UNSAID] = 0
    parts: Annotated[int, UNSAID] = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"work.kind is {self.kind!r}; allowed are {', '.join(KINDS)}")
        if self.split not in SPLITS:
            raise InvalidInput(f"work.split is {self.split!r}; allowed are {', '.join(SPLITS)}")
