"""What the stages of a pipeline cost: the numbers that the simulator takes, and their file.

Models each stage by its own times and bytes and each edge by a delay; a `MeasuredOperators` derives them from
a profile, people write them by hand (``penstock-costs``). Leaves out orders: those are a `Schedule`'s.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from costmodel.errors import InvalidInput
from costmodel.files import Node, document, read_json

COSTS_FORMAT, COSTS_VERSION = "penstock-costs", 1

Amount = int | tuple[int, ...]
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
    backward: bool = True
    memory_terms: tuple[tuple[str, int], ...] = ()
    offload_ns: int = 0
    joint_bytes: int = 0

    @property
    def whole_backward_ns(self) -> int:
        """The longest B: I, W and R."""
        return largest(self.backward_input_ns) + largest(self.backward_weight_ns) + largest(self.recompute_ns)


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

    source: int
    target: int
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


def read_costs(path: str | Path, num_microbatches: int = 0) -> Costs:
    """Read a costs file; with a number of micro-batches lists must have one value an action."""
    root = read_json(path)
    top = document(root, COSTS_FORMAT, COSTS_VERSION, ("stages",), ("edges", "pairs", "extra"))
    stages = top["stages"].items()
    fields = [node.members(_REQUIRED, _OPTIONAL) for node in stages]
    for members in fields if num_microbatches else ():
        _check_lengths(members, num_microbatches)
    edges = _edges(top["edges"]) if "edges" in top else tuple(EdgeCost(i, i + 1) for i in range(len(stages) - 1))
    return root.build(
        lambda: Costs(
            tuple(map(_stage, fields)),
            edges,
            tuple(_ranks(members.get("rank"), i) for i, members in enumerate(fields)),
            tuple(m["microbatch_multiple"].integer(1) if "microbatch_multiple" in m else 1 for m in fields),
            tuple(map(_pair, top["pairs"].items())) if "pairs" in top else (),
        )
    )


_REQUIRED = ("forward_ns", "backward_input_ns", "backward_weight_ns")
_OPTIONAL = ("rank", "activation_bytes", "weight_activation_bytes", "static_bytes", "recompute_ns", "reduce_ns",
             "optimizer_ns", "microbatch_multiple", "backward", "offload_ns")  # fmt: skip


def _check_lengths(fields: dict[str, Node], num_microbatches: int) -> None:
    """Refuse a list that has not one value an action, or as many for each slice of it."""
    multiple = fields["microbatch_multiple"].integer(1) if "microbatch_multiple" in fields else 1
    num_actions = max(1, num_microbatches // multiple)
    for key in PER_ACTION:
        if key in fields and isinstance(fields[key].value, list) and len(fields[key].items()) % num_actions:
            found = len(fields[key].items())
            raise InvalidInput(
                f"{fields[key].file}: {fields[key].pointer}: found a list of {found} values; {num_actions} are needed, "
                f"one an action ({num_microbatches} micro-batches, {multiple} an action)"
            )


def _stage(fields: dict[str, Node]) -> StageCost:
    value: Callable[[str, int], int] = lambda key, default: fields[key].integer() if key in fields else default  # noqa: E731
    activation = _amount(fields["activation_bytes"]) if "activation_bytes" in fields else 2
    if "weight_activation_bytes" in fields:
        kept = _amount(fields["weight_activation_bytes"])
    else:
        kept = activation // 2 if isinstance(activation, int) else tuple(a // 2 for a in activation)
    _check_kept(fields, activation, kept)
    return StageCost(
        forward_ns=_amount(fields["forward_ns"]),
        backward_input_ns=_amount(fields["backward_input_ns"]),
        backward_weight_ns=_amount(fields["backward_weight_ns"]),
        recompute_ns=_amount(fields["recompute_ns"]) if "recompute_ns" in fields else 0,
        activation_bytes=activation,
        weight_activation_bytes=kept,
        static_bytes=value("static_bytes", 0),
        reduce_ns=value("reduce_ns", 0),
        optimizer_ns=value("optimizer_ns", 0),
        backward=fields["backward"].flag() if "backward" in fields else True,
        offload_ns=value("offload_ns", 0),
    )


def _check_kept(fields: dict[str, Node], activation: Amount, kept: Amount) -> None:
    """Refuse more bytes kept until W than the whole activation."""
    length = max((len(a) for a in (activation, kept) if not isinstance(a, int)), default=1)
    for index in range(length):
        try:
            more = at(kept, index) > at(activation, index)
        except IndexError:
            fields["weight_activation_bytes"].fail(
                "activation_bytes and weight_activation_bytes need lists of one length"
            )
        if more:
            node = fields.get("weight_activation_bytes") or fields["activation_bytes"]
            node.fail(f"weight_activation_bytes is a part of activation_bytes, {at(activation, index)} at most")


def _amount(node: Node) -> Amount:
    if isinstance(node.value, list):
        values = node.integers()
        return values or node.fail("a list needs one value an action")
    return node.integer()


def _ranks(node: Node | None, stage: int) -> tuple[int, ...]:
    if node is None:
        return (stage,)
    ranks = node.integers() if isinstance(node.value, list) else (node.integer(),)
    if not ranks or len(set(ranks)) < len(ranks):
        node.fail("a rank, or a list of distinct ranks (replicas), is needed here")
    return ranks


def _edges(node: Node) -> tuple[EdgeCost, ...]:
    found = []
    for item in node.items():
        fields = item.members(("from", "to"), ("p2p_ns", "size_bytes", "gradient"))
        found.append(
            EdgeCost(
                fields["from"].integer(),
                fields["to"].integer(),
                fields["p2p_ns"].integer() if "p2p_ns" in fields else 0,
                fields["size_bytes"].integer() if "size_bytes" in fields else 0,
                fields["gradient"].flag() if "gradient" in fields else True,
            )
        )
    return tuple(found)


def _pair(node: Node) -> PairCost:
    fields = node.members(("forward", "backward", "pair_ns"))
    return PairCost(*(fields[name].integer() for name in ("forward", "backward", "pair_ns")))


def stage_to_json(cost: StageCost) -> dict[str, object]:
    """Return the JSON form of one stage's cost, as it is in a plan."""
    body = {key: value if isinstance(value := getattr(cost, key), int) else list(value) for key in PER_ACTION}
    return {**body, "backward": cost.backward, "memory_terms": dict(cost.memory_terms)}


def stage_from_node(node: Node) -> StageCost:
    """Read one stage's cost as it is in a plan."""
    fields = node.members(_REQUIRED, (*PER_ACTION, "backward", "memory_terms"))
    terms = fields["memory_terms"].entries() if "memory_terms" in fields else {}
    return replace(_stage(fields), memory_terms=tuple((name, term.integer()) for name, term in terms.items()))
