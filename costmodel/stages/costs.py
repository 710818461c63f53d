"""What the stages of a pipeline cost: the numbers that the simulator takes.

Models each stage by its own times and bytes and each edge by a delay; a `MeasuredOperators` derives them from
a profile, people write them by hand (`costmodel.stages.costs_file`). Leaves out orders: those are a `Schedule`'s.
"""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any

from costmodel.codec import UNSAID, Json, record
from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.forms import Definitions, JsonForm, Schema, listed, whole


def _amount(node: Node) -> int | tuple[int, ...]:
    if isinstance(node.value, list):
        return node.integers() or node.fail("a list needs one value an action")
    return node.integer()


def one_or_list(known: Definitions, **rules: object) -> Schema:
    """Return the schema of a whole number, or of a list of such."""
    return {"anyOf": [whole().schema(known), {**listed(whole()).schema(known), "minItems": 1, **rules}]}


AMOUNT = JsonForm[int | tuple[int, ...]](
    _amount, lambda found: found if isinstance(found, int) else list(found), one_or_list
)
Amount = Annotated[int | tuple[int, ...], Json(form=AMOUNT)]
"""One value for every action of a stage, or one value an action (in order of micro-batch)."""

PER_ACTION = ("forward_ns", "backward_input_ns", "backward_weight_ns", "recompute_ns", "activation_bytes",
              "weight_activation_bytes", "static_bytes", "reduce_ns", "optimizer_ns")  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageCost:
    """Costs of one stage; times and bytes of one action (of `microbatch_multiple` micro-batches).

    Attributes
    ----------
    forward_ns, backward_input_ns, backward_weight_ns : Amount
        F, I and W; a full backward B takes I + W.
    recompute_ns : Amount
        R, the forward run again before the backward when the stage recomputes.
    activation_bytes : Amount
        Taken at F's start. ``activation - weight_activation`` of it is freed at the end of I, the rest
        at the end of W; all of it at the end of B.
    weight_activation_bytes : Amount
        The part that stays from I until W.
    static_bytes : int
        Parameters, gradients and optimizer state, held all the time.
    reduce_ns, optimizer_ns : int
        Gradient reduction over the stage's replicas, and its optimizer step.
    backward : bool
        False for a stage whose output needs no gradient: it has forwards only.
    offload_ns : int
        One action's activation copied to host memory by OFFLOAD, and as long back by RELOAD, where orders have these.
    memory_terms : tuple of (str, int)
        What `static_bytes` is made of.
    joint_bytes : int
        Held besides where the stage's backward is whole and not I and W apart; 0 once orders have decided that.
    """

    forward_ns: Amount
    backward_input_ns: Amount
    backward_weight_ns: Amount
    recompute_ns: Amount = 0
    activation_bytes: Amount = 2
    weight_activation_bytes: Amount = 1
    static_bytes: int = 0
    reduce_ns: int = 0
    optimizer_ns: int = 0
    backward: Annotated[bool, Json(says="False for a stage that has forwards only.")] = True
    memory_terms: Annotated[tuple[tuple[str, int], ...], Json(says="What static_bytes is made of.")] = ()
    offload_ns: Annotated[int, UNSAID] = 0
    joint_bytes: int = 0

    @property
    def whole_backward_ns(self) -> int:
        """The longest B: I, W and R."""
        return largest(self.backward_input_ns) + largest(self.backward_weight_ns) + largest(self.recompute_ns)


def settled(values: dict[str, Any], node: Node) -> None:
    """Set what stays until W to half of the activation where nothing is said; it cannot be more."""
    activation = values.get("activation_bytes", 2)
    if "weight_activation_bytes" not in values:
        half = activation // 2 if isinstance(activation, int) else tuple(a // 2 for a in activation)
        values["weight_activation_bytes"] = half
        return
    place, stays = node.child("weight_activation_bytes"), values["weight_activation_bytes"]
    length = max((len(a) for a in (activation, stays) if not isinstance(a, int)), default=1)
    if any(not isinstance(a, int) and len(a) != length for a in (activation, stays)):
        place.fail("activation_bytes and weight_activation_bytes need lists of one length")
    for index in range(length):
        if at(stays, index) > at(activation, index):
            place.fail(f"weight_activation_bytes is a part of activation_bytes, {at(activation, index)} at most")


STAGE_COST: JsonForm[StageCost] = record(StageCost, absent=("offload_ns", "joint_bytes"), settle=settled)
"""A stage's cost as it stands in a plan."""


@dataclass(frozen=True, slots=True)
class EdgeCost:
    """An edge of the stage graph.

    Attributes
    ----------
    source, target : int
        Stages.
    p2p_ns : int
        From the end of the sender's action until the receiver may start, in both directions; it does
        not apply between stages of one rank.
    size_bytes : int
        What one action sends, held as a buffer on both sides while it travels.
    gradient : bool
        Whether a gradient flows back over it.
    """

    source: Annotated[int, Json("from")]
    target: Annotated[int, Json("to")]
    p2p_ns: int = 0
    size_bytes: int = 0
    gradient: bool = True


@dataclass(frozen=True, slots=True)
class PairCost:
    """What a forward of one stage and the whole backward of another take where one rank runs them overlapped."""

    forward: int
    backward: int
    pair_ns: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of all stages and edges, with where each stage runs.

    Attributes
    ----------
    stages : tuple of StageCost
    edges : tuple of EdgeCost
    ranks : tuple of tuple of int
        Ranks of each stage, its replicas; micro-batch group g runs on ``ranks[g mod len(ranks)]``.
    multiples : tuple of int
        Micro-batches that one action of the stage works on.
    pairs : tuple of PairCost
        Overlapped pairs that have a time of their own; others take that of both.

    Raises
    ------
    InvalidInput
        On an edge or a pair of a stage that is not there, a cycle, a rank number left out, or lists of uneven length.
    """

    stages: tuple[StageCost, ...]
    edges: tuple[EdgeCost, ...]
    ranks: tuple[tuple[int, ...], ...] = ()
    multiples: tuple[int, ...] = field(default=())
    pairs: tuple[PairCost, ...] = ()

    def __post_init__(self) -> None:
        if not self.stages:
            raise InvalidInput("no stages; at least one is needed")
        if not self.ranks:
            object.__setattr__(self, "ranks", tuple((i,) for i in range(len(self.stages))))
        if not self.multiples:
            object.__setattr__(self, "multiples", (1,) * len(self.stages))
        if not len(self.stages) == len(self.ranks) == len(self.multiples):
            raise InvalidInput(
                f"{len(self.stages)} stages with ranks of {len(self.ranks)} and multiples of {len(self.multiples)}; "
                "give one of each a stage"
            )
        for stage, ranks in enumerate(self.ranks):
            if not ranks or len(set(ranks)) < len(ranks) or min(ranks) < 0:
                raise InvalidInput(
                    f"stage {stage} has the ranks {list(ranks)}; a stage needs at least one, each named once"
                )
        self._check_edges()
        self._check_pairs()
        used = {rank for ranks in self.ranks for rank in ranks}
        if used != set(range(len(used))):
            raise InvalidInput(f"the stages use the ranks {sorted(used)}; ranks are numbered from 0 without a gap")

    @property
    def num_ranks(self) -> int:
        """How many ranks the stages use."""
        return 1 + max(rank for ranks in self.ranks for rank in ranks)

    def _check_pairs(self) -> None:
        seen: set[tuple[int, int]] = set()
        for pair in self.pairs:
            ends = (pair.forward, pair.backward)
            if ends in seen:
                raise InvalidInput(f"the pair of the stages {ends} occurs twice; keep one of them")
            if min(ends) < 0 or max(ends) >= len(self.stages):
                raise InvalidInput(f"a pair of the stages {ends}: stages are numbered 0 to {len(self.stages) - 1}")
            seen.add(ends)

    def _check_edges(self) -> None:
        seen: set[tuple[int, int]] = set()
        waiting = dict.fromkeys(range(len(self.stages)), 0)
        after: list[list[int]] = [[] for _ in self.stages]
        for edge in self.edges:
            ends = (edge.source, edge.target)
            if edge.source == edge.target or min(ends) < 0 or max(ends) >= len(self.stages):
                raise InvalidInput(f"edge {ends[0]} -> {ends[1]}: stages are numbered 0 to {len(self.stages) - 1}")
            if ends in seen:
                raise InvalidInput(f"edge {ends[0]} -> {ends[1]} occurs twice; join the two into one")
            seen.add(ends)
            after[edge.source].append(edge.target)
            waiting[edge.target] += 1
        ready = [stage for stage, count in waiting.items() if not count]
        for stage in ready:
            for target in after[stage]:
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
        if len(ready) < len(self.stages):
            stuck = sorted(set(waiting) - set(ready))
            raise InvalidInput(
                f"the edges form a cycle among the stages {stuck}; a stage graph has none, so drop one edge"
            )


def at(amount: Amount, action_index: int) -> int:
    """Return the value of a stage's `action_index`-th action."""
    return amount if isinstance(amount, int) else amount[action_index]


def largest(amount: Amount) -> int:
    """Return the largest value of any action."""
    return amount if isinstance(amount, int) else max(amount)


def mean(amount: Amount) -> float:
    """Return the mean over actions."""
    return float(amount) if isinstance(amount, int) else fmean(amount)


def least(amount: Amount) -> int:
    """Return the least value of any action."""
    return amount if isinstance(amount, int) else min(amount)
