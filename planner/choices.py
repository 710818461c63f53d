"""Choices that flags fix for every stage, and what follows for those left out.

N devices = stages x data x tensor x context, "stages" being places in the pipeline; with V chunks each place holds V
stages. Leaves out which trainers run such a job (`planner.targets`) and what it costs (`planner.grouped`).
"""

from dataclasses import dataclass, fields

from costmodel.errors import UsageError
from costmodel.stages.config import StageConfig


@dataclass(frozen=True, slots=True)
class Choices:
    """What is fixed; None and False where nothing was said.

    Attributes
    ----------
    stages : int
        Places in the pipeline.
    chunks : int
        Stages a place.
    data, tensor, context, expert : int
        Degrees of parallelism of every stage.
    sequence_parallel : bool
        Tensor-parallel ranks divide norms, dropout and residuals along the sequence.
    zero : int
    recompute, offload : str
    precision : str
        One of `costmodel.stages.strategies.training.PRECISIONS`.
    """

    stages: int | None = None
    chunks: int | None = None
    data: int | None = None
    tensor: int | None = None
    sequence_parallel: bool = False
    context: int | None = None
    expert: int | None = None
    zero: int | None = None
    recompute: str | None = None
    offload: str | None = None
    precision: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return what is fixed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, False)}

    @property
    def any(self) -> bool:
        """Whether anything is fixed but the precision, which says nothing of how stages spread."""
        return bool(self.to_json().keys() - {"precision"})


@dataclass(frozen=True, slots=True)
class Shape:
    """A job's shape: `places` in the pipeline, each with `chunks` stages, all configured alike."""

    places: int
    chunks: int
    config: StageConfig

    @property
    def num_stages(self) -> int:
        """How many stages the model is cut into."""
        return self.places * self.chunks

    @property
    def block_size(self) -> int:
        """Ranks that work on one replica of a stage."""
        return self.config.tensor * self.config.context

    @property
    def num_blocks(self) -> int:
        """Replicas of places."""
        return self.places * self.config.data

    def block(self, number: int) -> tuple[int, ...]:
        """Return the ranks of a block: they follow each other, blocks of one place too (Megatron-LM's order)."""
        return tuple(range(number * self.block_size, (number + 1) * self.block_size))

    def ranks(self, place: int) -> tuple[int, ...]:
        """Return the ranks of a place."""
        size = self.config.data * self.block_size
        return tuple(range(place * size, (place + 1) * size))


def shape_of(choices: Choices, num_devices: int) -> Shape:
    """Work out what was left out: tensor, context, expert and chunks are 1.

    Of the devices that tensor and context leave, data takes what `stages` does not, or `stages` what `data` does not;
    with neither given ZeRO and expert parallelism make them all data, else they are stages.

    Raises
    ------
    UsageError
        Where devices do not divide, or choices contradict each other.
    """
    tensor, context = choices.tensor or 1, choices.context or 1
    left = _divide(num_devices, tensor * context, f"tensor {tensor} x context {context}")
    places, data = choices.stages, choices.data
    if places is None and data is None and ((choices.zero or 0) > 0 or (choices.expert or 1) > 1):
        places = 1
    if places is None:
        data = data or 1
        places = _divide(left, data, f"tensor {tensor} x context {context} x data {data}", num_devices)
    elif data is None:
        data = _divide(left, places, f"tensor {tensor} x context {context} x stages {places}", num_devices)
    if places * data != left:
        raise UsageError(
            f"stages {places} x data {data} x tensor {tensor} x context {context} make "
            f"{places * data * tensor * context} devices, and --devices says {num_devices}; give --devices "
            f"{places * data * tensor * context}, or leave --data out"
        )
    _check(choices, data, tensor, context)
    config = StageConfig(
        data=data,
        tensor=tensor,
        sequence=tensor if choices.sequence_parallel else 1,
        context=context,
        expert=choices.expert or 1,
        zero=choices.zero or 0,
        recompute=choices.recompute or "none",
        offload=choices.offload or "none",
    )
    return Shape(places, choices.chunks or 1, config)


def _divide(number: int, parts: int, what: str, devices: int | None = None) -> int:
    if number % parts:
        raise UsageError(
            f"{what} does not divide the {devices or number} devices; choose degrees whose product divides them, or "
            "another --devices"
        )
    return number // parts


def _check(choices: Choices, data: int, tensor: int, context: int) -> None:
    expert = choices.expert or 1
    if (data * context) % expert:
        raise UsageError(
            f"--expert {expert} does not divide data {data} x context {context}, the ranks over which experts spread; "
            f"choose a divisor of {data * context}"
        )
    if choices.sequence_parallel and tensor == 1:
        raise UsageError(
            "--sequence-parallel divides among tensor-parallel ranks, and tensor is 1; give --tensor, or drop it "
            "(--context divides the whole sequence)"
        )
    if choices.zero and data * context == 1:
        raise UsageError(
            f"--zero {choices.zero} shards over data and context ranks, and there is one; give --data, or drop it"
        )
