"""What an operator does for one sample, apart from any device.

Enough to price it where nothing was measured, and to say how it divides among devices. A measured profile need not
say it; then only strategies that leave operators whole can be priced. Leaves out times (`costmodel.roofline`) and what
dividing costs (`costmodel.stages.strategies`).
"""

from dataclasses import dataclass, fields

from costmodel.errors import InvalidInput
from costmodel.files import Node

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

    kind: str
    split: str
    tokens: int
    inner: int = 0
    outer: int = 0
    passes: int = 2
    heads: int = 0
    kv_heads: int = 0
    context: int = 0
    causal: bool = False
    experts: int = 0
    active: int = 0
    groups: int = 0
    reached: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"work.kind is {self.kind!r}; allowed are {', '.join(KINDS)}")
        if self.split not in SPLITS:
            raise InvalidInput(f"work.split is {self.split!r}; allowed are {', '.join(SPLITS)}")

    def to_json(self) -> dict[str, object]:
        """Return the JSON form: what differs from the defaults."""
        required = ("kind", "split", "tokens")
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in values.items() if name in required or value != defaults[name]}

    @classmethod
    def from_node(cls, node: Node) -> "Work":
        """Read the JSON form."""
        members = node.members(("kind", "split", "tokens"), [f.name for f in fields(cls)][3:])
        values = {name: _read(name, member) for name, member in members.items()}
        return node.build(lambda: cls(**values))  # type: ignore[arg-type]


def _read(name: str, node: Node) -> object:
    if name in ("kind", "split"):
        return node.text()
    return node.flag() if name == "causal" else node.integer()
