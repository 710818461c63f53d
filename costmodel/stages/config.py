"""How one stage spreads over its devices: degrees of parallelism, sharded states, recompute, offload.

Leaves out prices; the cost model knows which of these it can price.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from costmodel.codec import UNSAID, Json, Positive, record
from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.forms import JsonForm

RECOMPUTE = ("none", "selective", "full")
BY_OPERATOR = "operators"
"""Recompute that names the operators: of the first layers of a stage, or as pins say."""
OFFLOAD = ("none", "optimizer", "parameters", "activations")


@dataclass(frozen=True, slots=True)
class StageConfig:
    """Degrees of data, tensor, sequence, context and expert parallelism, ZeRO stage 0-3, recompute, offload.

    ``shard_group`` is how many replicas that follow each other divide states under ZeRO, each with its context ranks;
    0 where all of them do, as everywhere without ZeRO. ``expert_tensor`` is into how many parts each expert is divided,
    which is the tensor degree where nothing is said (0).
    `recomputed_operators` names the operators whose forward runs again under recompute ``operators`` (``again`` in
    JSON); those that follow each other run again together, from what flows into the first.
    `offload_fraction` is the part of what `offload` names that is on the host, from 0 to 1; the rest stays.
    """

    data: Positive = 1
    tensor: Positive = 1
    sequence: Positive = 1
    context: Positive = 1
    expert: Positive = 1
    zero: Annotated[int, Json(most=3)] = 0
    recompute: Annotated[str, Json(allowed=(*RECOMPUTE, BY_OPERATOR))] = "none"
    offload: Annotated[str, Json(allowed=OFFLOAD)] = "none"
    recomputed_operators: Annotated[tuple[str, ...], UNSAID, Json("again")] = ()
    shard_group: Annotated[int, UNSAID, Json(least=1)] = 0
    expert_tensor: Annotated[int, Json(least=1, unsaid=lambda config: config.expert_tensor == config.tensor)] = 0
    offload_fraction: Annotated[float, UNSAID, Json(most=1)] = 1.0

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "sequence", "context", "expert"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"config.{name} is {getattr(self, name)}; a degree is at least 1")
        if self.zero not in range(4):
            raise InvalidInput(f"config.zero is {self.zero}; allowed are 0, 1, 2 and 3")
        if self.recompute not in (*RECOMPUTE, BY_OPERATOR):
            known = ", ".join((*RECOMPUTE, BY_OPERATOR))
            raise InvalidInput(f"config.recompute is {self.recompute!r}; allowed are {known}")
        if bool(self.recomputed_operators) != (self.recompute == BY_OPERATOR):
            raise InvalidInput(
                f"config.again names {len(self.recomputed_operators)} operators under recompute {self.recompute!r}; it "
                f"goes with recompute {BY_OPERATOR!r}, which needs one at least"
            )
        if self.offload not in OFFLOAD:
            raise InvalidInput(f"config.offload is {self.offload!r}; allowed are {', '.join(OFFLOAD)}")
        if not 0 <= self.offload_fraction <= 1 or (self.offload_fraction < 1 and self.offload == "none"):
            raise InvalidInput(
                f"config.offload_fraction is {self.offload_fraction} with offload {self.offload!r}; it is a part "
                "from 0 to 1 of what offload names"
            )
        object.__setattr__(self, "expert_tensor", self.expert_tensor or self.tensor)
        if self.expert_tensor < 1 or self.num_ranks % self.expert_tensor:
            raise InvalidInput(
                f"config.expert_tensor is {self.expert_tensor}; allowed are divisors of the stage's ranks, "
                f"data x context x tensor = {self.num_ranks}"
            )
        self._check_shard_group()

    def _check_shard_group(self) -> None:
        """Refuse a group that does not divide the replicas, or that experts do not; one of all replicas is 0."""
        if not self.zero or self.shard_group == self.data:
            object.__setattr__(self, "shard_group", 0)
        if not self.shard_group:
            return
        if self.shard_group < 0 or self.data % self.shard_group:
            raise InvalidInput(
                f"config.shard_group is {self.shard_group}; allowed are divisors of config.data, which is {self.data}"
            )
        if self.num_sharers == 1 or self.num_sharers * self.tensor % self.num_expert_parts:
            raise InvalidInput(
                f"config.shard_group is {self.shard_group} x context {self.context} x tensor {self.tensor}, and expert "
                f"is {self.expert} x expert_tensor {self.expert_tensor}; a group is of at least two ranks, "
                "which expert divides"
            )

    @property
    def num_ranks(self) -> int:
        """How many ranks a stage has."""
        return self.data * self.context * self.tensor

    @property
    def num_expert_parts(self) -> int:
        """How many ranks hold all experts of a stage together."""
        return self.expert * self.expert_tensor

    @property
    def division(self) -> tuple[int, int, int, int, int, int]:
        """Degrees of data, tensor, sequence, context, expert and expert tensor parallelism."""
        return self.data, self.tensor, self.sequence, self.context, self.expert, self.expert_tensor

    @property
    def degrees(self) -> "StageConfig":
        """How operators are divided, without choices of what is held where or runs again."""
        return StageConfig(*self.division[:-1], expert_tensor=self.expert_tensor)

    @property
    def whole_operators(self) -> bool:
        """Whether each rank has operators as they are."""
        return self.tensor == self.context == self.expert == self.expert_tensor == 1

    @property
    def num_sharers(self) -> int:
        """How many ranks that hold the same weights divide states under ZeRO."""
        return (self.shard_group or self.data) * self.context

    @property
    def remade(self) -> str | tuple[str, ...]:
        """What runs again: a way to recompute, or the operators by name."""
        return self.recomputed_operators or self.recompute

    @property
    def gathers(self) -> bool:
        """Whether replicas divide gradients or parameters, which they gather and sum together."""
        return self.zero > 1 and self.data > 1

    @property
    def in_step(self) -> bool:
        """Whether replicas wait for each other within their actions: they gather, or have experts of each other's."""
        return self.gathers or self.num_expert_parts > self.tensor

    @property
    def divides(self) -> bool:
        """Whether ranks hold parts of parameters, in use or between uses."""
        return self.tensor > 1 or self.in_step


def _settled(values: dict[str, Any], node: Node) -> None:
    group = values.get("shard_group", 0)
    if group and not values.get("zero") and group != values.get("data", 1):
        node.fail("shard_group goes with zero 1, 2 or 3: without them nothing is divided")


CONFIG: JsonForm[StageConfig] = record(StageConfig, late=("again",), settle=_settled)
"""How a stage spreads, as files and pins have it; a key left out has its default."""


def but_operators(config: StageConfig) -> StageConfig:
    """Return a configuration without the operators that run again by name, in which stages differ by what they hold."""
    return recomputed(config, ()) if config.recomputed_operators else config


def recomputed(config: StageConfig, operators: tuple[str, ...]) -> StageConfig:
    """Return a configuration under which these operators run again, and nothing where there are none."""
    return replace(config, recompute=BY_OPERATOR if operators else "none", recomputed_operators=operators)
