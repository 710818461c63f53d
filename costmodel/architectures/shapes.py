"""The shape of a decoder-only language model, whatever its configuration called it."""

from dataclasses import dataclass, field

from costmodel.architectures.layer_operators import Heads
from costmodel.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2024): ranks of the compressed query (0: not compressed) and key."""

    query_rank: int
    key_rank: int
    plain_width: int
    rotary_width: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts.

    Attributes
    ----------
    num_experts, active : int
        How many there are, and how many take each token.
    width : int
        Of one expert's hidden layer.
    shared_width : int
        Of the expert that takes every token; 0 when there is none.
    shared_name : str
        Its module.
    shared_gate : bool
        Whether a learned gate scales it (Qwen2-MoE).
    router : str
        The router's module.
    biased : bool
        Router and experts have biases, and their weights lie transposed (GPT-OSS).
    groups, reached : int
        Groups of experts that lie side by side, and how many of them a token's experts may be in (DeepSeek-V3, 2024,
        section 2.1.2: node-limited routing); 0 where any may take it.
    corrected : bool
        A buffer balances the experts' load by shifting scores (DeepSeek-V3, 2024, section 2.1.2).
    """

    num_experts: int
    active: int
    width: int
    shared_width: int = 0
    shared_name: str = "shared_experts"
    shared_gate: bool = False
    router: str = "gate"
    biased: bool = False
    corrected: bool = False
    groups: int = 0
    reached: int = 0

    def __post_init__(self) -> None:
        if self.active > self.num_experts:
            raise InvalidInput(f"{self.active} of {self.num_experts} experts take each token; correct config.json")


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder of pre-norm layers with rotary positions and gated feed-forward.

    Attributes
    ----------
    vocabulary, hidden, num_layers, ffn : int
    heads : Heads
        Its window holds for the layers of `windowed`.
    windowed, sparse : frozenset of int
        Layers with a sliding window, and those with experts.
    query_bias, output_bias, ffn_bias : bool
        Biases of the query, key and value projections, of the output projection, of the feed-forward.
    head_norms : bool
        Queries and keys are normalised a head (Qwen3).
    sinks : bool
        One learned score a head joins every softmax (GPT-OSS).
    num_predict : int
        Layers that predict one token further each (MTP, DeepSeek-V3, 2024, section 2.2).
    prefix : str
        Path of the text model.
    """

    vocabulary: int
    hidden: int
    num_layers: int
    ffn: int
    heads: Heads
    tied: bool = False
    windowed: frozenset[int] = frozenset()
    sparse: frozenset[int] = frozenset()
    experts: Experts | None = None
    latent: Latent | None = None
    query_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    head_norms: bool = False
    sinks: bool = False
    num_predict: int = 0
    prefix: str = field(default="model")
