"""The space of choices: for each decision what is fixed for every stage; what is not fixed is searched.

N devices = stages x data x tensor x context, "stages" being places in the pipeline; with V chunks each place holds V
stages. Leaves out stages that pins fix one by one (`planner.question.pins`), which trainers run what
(`planner.question.targets`) and what it costs.
"""

from dataclasses import dataclass, fields

from costmodel.errors import UsageError
from planner.plan.rank_order import RANK_ORDER, RankOrder

DEGREES = ("stages", "data", "tensor", "context")
"""Decisions whose product is the number of devices used."""


@dataclass(frozen=True, slots=True)
class Space:
    """What is fixed; None for what is free.

    Attributes
    ----------
    stages : int
        Places in the pipeline.
    chunks : int
        Stages a place.
    data, tensor, context, expert, expert_tensor : int
        Degrees of parallelism of every stage.
    sequence_parallel : bool
        Tensor-parallel ranks divide norms, dropout and residuals along the sequence.
    zero : int
    recompute, offload : str
    shard_group : int
        Replicas that divide states under ZeRO; all of them, or as many as a host has.
    recompute_layers : int
        How many of the layers of each stage run again, the first ones, under recompute ``full``.
    rank_order : str
        Names of `RANK_ORDER`, the innermost first, joined by commas.
    """

    stages: int | None = None
    chunks: int | None = None
    data: int | None = None
    tensor: int | None = None
    sequence_parallel: bool | None = None
    context: int | None = None
    expert: int | None = None
    zero: int | None = None
    recompute: str | None = None
    offload: str | None = None
    shard_group: int | None = None
    recompute_layers: int | None = None
    expert_tensor: int | None = None
    rank_order: str | None = None

    @property
    def ranks(self) -> RankOrder:
        """The order in which ranks count along the degrees: the one that is fixed, or the usual one."""
        return tuple(self.rank_order.split(",")) if self.rank_order else RANK_ORDER

    def to_json(self) -> dict[str, object]:
        """Return what is fixed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def allows(self, name: str, value: object) -> bool:
        """Whether a decision may take a value."""
        fixed = getattr(self, name)
        return fixed is None or fixed == value

    def check(self, num_devices: int, global_batch: int) -> None:
        """Refuse what no plan can keep.

        Raises
        ------
        UsageError
            Where fixed degrees need more devices than there are, or contradict each other or the batch.
        """
        needed = 1
        said = []
        for name in DEGREES:
            if getattr(self, name):
                needed *= getattr(self, name)
                said.append(f"{name} {getattr(self, name)}")
        if needed > num_devices:
            raise UsageError(
                f"{' x '.join(said)} make {needed} devices, and --devices says {num_devices}; give --devices {needed}, "
                "or fix fewer degrees"
            )
        if self.data and global_batch % self.data:
            raise UsageError(
                f"the batch of {global_batch} does not divide into {self.data} replicas; choose a --batch that is a "
                f"multiple of {self.data}"
            )
        self._check_pairs(num_devices)

    def _check_pairs(self, num_devices: int) -> None:
        data, tensor, context = self.data or num_devices, self.tensor or num_devices, self.context or num_devices
        experts, parts = self.expert or 1, self.expert_tensor or 1
        if self.data and self.tensor and self.context and (data * context * tensor) % (experts * parts):
            raise UsageError(
                f"--expert {experts} x --expert-tensor {parts} does not divide data {data} x context {context} x "
                f"tensor {tensor}, the ranks over which experts spread; choose divisors of {data * context * tensor}"
            )
        if self.expert_tensor and self.tensor and self.expert_tensor != tensor > 1 and self.sequence_parallel is False:
            raise UsageError(
                f"--expert-tensor {self.expert_tensor} is not --tensor {tensor}, so that experts take ranks' parts of "
                "the sequence; give --sequence-parallel with it"
            )
        if self.sequence_parallel and tensor == 1:
            raise UsageError(
                "--sequence-parallel divides among tensor-parallel ranks, and tensor is 1; give --tensor, or drop it "
                "(--context divides the whole sequence)"
            )
        if self.zero and data * context == 1:
            raise UsageError(
                f"--zero {self.zero} shards over data and context ranks, and there is one; give --data, or drop it"
            )
        alone = self.shard_group == 1 and (self.context or 1) == 1
        if self.shard_group and (alone or self.zero == 0 or (self.data and self.data % self.shard_group)):
            raise UsageError(
                f"--shard-group {self.shard_group} is how many of the data-parallel replicas divide states under ZeRO, "
                f"and --data is {self.data or 'open'}, --zero {'open' if self.zero is None else self.zero}; give a "
                "divisor of --data above 1, with --zero 1, 2 or 3, or drop it"
            )
        if self.recompute_layers and self.recompute != "full":
            raise UsageError(
                f"--recompute-layers {self.recompute_layers} runs the first layers of each stage again, whole, and "
                f"recompute is {self.recompute or 'open'}; take --recompute full with it, or drop it"
            )
        if self.offload == "parameters" and self.zero not in (None, 3):
            raise UsageError(
                f"parameters are offloaded with zero {self.zero}; only ZeRO-3 gathers them for use: --zero 3, or "
                "--offload optimizer"
            )
