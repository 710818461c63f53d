"""What holds for a whole training job: precision, optimizer, and how its trainer overlaps communication.

Bytes a parameter follow Rajbhandari et al. (ZeRO, 2020, section 3.1): mixed precision with Adam holds 2 + 2 bytes of
weights and gradients and 12 of states, the fp32 master weights among them. Leaves out loss scaling.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import ceil

from costmodel.calibration import TERMS, Calibration, published
from costmodel.errors import UsageError
from costmodel.machines import catalogue
from costmodel.roofline import OPTIMIZERS
from costmodel.roofline.narrow import RECIPES, Recipe, recipes
from costmodel.roofline.rates import ELEMENT_BYTES, OPERAND_BYTES
from costmodel.stages.strategies.trainers import TrainerHabits, habits_of

EXECUTOR = "executor"
"""The trainer that runs plans as they are; any other has the convention of Megatron-LM, torchtitan, DeepSpeed."""
BUCKET_BYTES = 25 * 2**20
"""torch's default ``bucket_cap_mb``."""
PRECISIONS = ("", *catalogue.PRECISIONS)
WIDTHS = ELEMENT_BYTES
"""Bytes of a value that is kept: in narrow precisions weights and activations stay in bf16, cast into each matmul.

Some keep those casts (`TrainingJob.casts_inputs`).
"""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Choices of a whole job.

    Attributes
    ----------
    precision : str
        One of `PRECISIONS`: ``""`` computes and keeps states as profiled; those of 16 bits and fewer are mixed, with
        master weights in fp32.
    optimizer : str
        A key of `costmodel.roofline.OPTIMIZERS`.
    sequence_parallel : bool
        Tensor-parallel stages divide norms, dropout and residuals along the sequence (Korthikanti et al., 2022).
    flash : bool
        Attention keeps no scores; False: softmax's output, the dropout mask and dropout's output are kept.
    overlap : bool
        Gradients are summed while the backward of the last micro-batch runs, and parameters gathered ahead of use.
    overlap_gathers, overlap_tensor : bool, optional
        Parameters are gathered ahead of use; sums of tensor-parallel gradients overlap the layer's own gradient
        matmuls. None: as `overlap` is.
    overlap_experts : bool
        All-to-alls of experts run during another micro-batch's compute.
    experts_together : int
        Experts of a token that lie side by side.
    dispatcher : str
        How tokens reach experts, of `trainers.DISPATCHERS`.
    overlap_slowdown : float
        Factor by which compute slows while it shares the device with communication; 0 takes the catalogue's.
    whole_stages : bool
        The executor: full recompute runs a stage's whole forward again, as an action R of its own, parameters that
        several stages hold are summed once over all their ranks, what is divided among replicas is gathered in the
        units of `units`, and each column layer sums the gradient of its input by itself. Else blocks run again one by
        one within the backward, tied parameters are summed after the replicas', and such gradients are summed once.
    summed_in_place : bool
        Gradients are summed in the buffer that they are kept in, none of them copied.
    bucket_bytes, bucket_rank_bytes : int
        Of a sum of gradients at least, and for each rank that it sums over.
    loss_bytes : int
        Alive of a 16-bit logit at the loss's peak, 4 of them kept; nothing is profiled of described models.
    divided_loss_bytes : int
        As of `TrainerHabits`.
    gradient_bytes, main_weight_bytes : int
        Of a gradient (no less than the weight) and of a weight beyond its 16 bits, in mixed precision.
    stand_ins, by_block, outputs_kept, by_owner, fp8_inputs : bool
        As of `TrainerHabits`.
    gradient_copy_bytes, fp8_copy_bytes : int
        As of `TrainerHabits`.
    reserved : float
        Part of what is allocated that the allocator usually reserves besides.
    fp8_matmul : float
        By how much products in fp8 take longer with the trainer's casts and scales.
    fp8_recipe : str
        Where scales of fp8 come from, of `costmodel.roofline.narrow.RECIPES`.
    slower : mapping
        By how much the trainer's kernels take longer than the tables say, by `calibration.TERMS`, where nothing was
        measured.
    attention : str
        Its kernel, of `trainers.KERNELS`.
    fused : bool
        As of `TrainerHabits`.
    unfused : float
        By how much norms and elementwise operators take longer in kernels of their own.
    calls : mapping
        Of the host for the forward of an operator, by its kind of work, for a ``collective`` and a ``message``.
    call_ns : float
        What each takes.
    host_backward : float
        The same of a backward, over that of the forward.
    selective : str
        What ``selective`` recompute runs again, of `trainers.SELECTIVE`.
    coupled : float
        The part of the shorter of host and device that the longer does not hide.

    Raises
    ------
    UsageError
        On an unknown precision or optimizer, or a factor below 1.
    """

    precision: str = ""
    optimizer: str = "none"
    sequence_parallel: bool = False
    flash: bool = True
    overlap: bool = True
    overlap_slowdown: float = 0.0
    whole_stages: bool = False
    overlap_gathers: bool | None = None
    overlap_tensor: bool | None = None
    overlap_experts: bool = False
    experts_together: int = 1
    dispatcher: str = "alltoall"
    summed_in_place: bool = False
    bucket_bytes: int = BUCKET_BYTES
    bucket_rank_bytes: int = 0
    loss_bytes: int = 6
    divided_loss_bytes: int = 0
    gradient_bytes: int = 0
    main_weight_bytes: int = 4
    slower: Mapping[str, float] = field(default_factory=dict)
    attention: str = ""
    fused: bool = True
    unfused: float = 1.0
    fp8_matmul: float = 1.0
    fp8_recipe: str = RECIPES[0]
    calls: Mapping[str, float] = field(default_factory=dict)
    call_ns: float = 0.0
    host_backward: float = 1.0
    selective: str = "attention"
    coupled: float = 0.0
    stand_ins: bool = False
    gradient_copy_bytes: int = 0
    by_block: bool = False
    outputs_kept: bool = False
    by_owner: bool = False
    fp8_inputs: bool = False
    fp8_copy_bytes: int = 1
    reserved: float = 0.07

    @classmethod
    def of(
        cls,
        trainer: str,
        precision: str,
        optimizer: str,
        said: Mapping[str, object] | None = None,
        calibration: Calibration | None = None,
    ) -> "TrainingJob":
        """Return the convention of a trainer, as far as nothing else is `said`, at what its calls are known to take.

        Raises
        ------
        UsageError
            When there is no such trainer.
        """
        habits, known = habits_of(trainer).but(said or {}), calibration or published()
        alike = {each.name for each in fields(cls)} & {each.name for each in fields(TrainerHabits)}
        told: dict[str, object] = {name: getattr(habits, name) for name in alike} | {
            "whole_stages": trainer == EXECUTOR,
            "bucket_bytes": habits.bucket_mib * 2**20,
            "slower": {term: known.efficiency(term, trainer) for term in TERMS},
            "unfused": 1.0 if habits.fused else known.of_trainer("unfused", trainer),
            "fp8_matmul": known.of_trainer("fp8", trainer),
            "calls": dict(habits.calls),
            "call_ns": 0.0 if habits.graphs else 1000 * known.of_trainer("host", trainer),
            "host_backward": habits.calls_backward,
            "coupled": known.of_trainer("coupled", trainer),
            "reserved": habits.reserved_percent / 100,
        }
        return cls(precision, optimizer, **told)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"precision {self.precision!r}; allowed are {', '.join(PRECISIONS[1:])}, or none to compute as profiled"
            )
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(f"optimizer {self.optimizer!r}; allowed are {', '.join(OPTIMIZERS)}")
        if OPTIMIZERS[self.optimizer].width and not self.precision:
            raise UsageError(
                f"--optimizer {self.optimizer} keeps states in fewer bits than weights, and no precision is said; give "
                "--precision (bf16, for instance) too, or take adam"
            )
        if self.overlap_experts and self.dispatcher == "allgather":
            raise UsageError(
                "no trainer gathers tokens of experts during compute (--overlap-experts with --dispatcher allgather); "
                "take --dispatcher alltoall or flex, or --no-overlap-experts"
            )
        if self.overlap_slowdown and self.overlap_slowdown < 1:
            raise UsageError(
                f"overlap_slowdown is {self.overlap_slowdown:g}; give a factor of at least 1, or 0 for the catalogue's"
            )

    @property
    def host_ns(self) -> Mapping[str, float]:
        """What the host takes by kind of work; empty where nothing is known of it."""
        return {kind: count * self.call_ns for kind, count in self.calls.items()} if self.call_ns else {}

    @property
    def mixed(self) -> bool:
        """Whether weights are kept in fp32 in addition to those that compute."""
        return self.precision in ("fp16", "bf16", *catalogue.NARROW)

    @property
    def casts_inputs(self) -> bool:
        """Whether products keep what they read as they cast it."""
        return self.fp8_inputs and self.narrow

    @property
    def narrow(self) -> bool:
        """Whether matrix products compute in fewer than 16 bits."""
        return self.precision in catalogue.NARROW

    @property
    def recipe(self) -> Recipe | None:
        """How values are cast into a narrow precision."""
        return recipes()[self.fp8_recipe if self.precision == "fp8" else self.precision] if self.narrow else None

    def cast_bytes(self, held: int) -> int:
        """Bytes that values of 16 bits take in a narrow precision, scales among them."""
        return ceil(held * OPERAND_BYTES[self.precision] / ELEMENT_BYTES[self.precision])

    @property
    def once_a_rank(self) -> tuple[str, ...]:
        """Terms (`memory.TERMS`) that a rank holds for one of its stages at a time: what an action works with.

        The executor runs a stage again in an action of its own, and keeps gradients until the next are summed.
        """
        stands = ("gradient_copies",) if self.stand_ins and not self.gradient_copy_bytes else ()
        return (
            ("workspace",) if self.whole_stages else ("workspace", "recompute_peak", "communication_buffers", *stands)
        )

    def width(self, profiled: int) -> int:
        """Bytes of a weight, gradient or activation value that takes `profiled` bytes in the profile."""
        return WIDTHS[self.precision] if self.precision else profiled

    def state_width(self, profiled: int) -> int:
        """Bytes a parameter of the optimizer's states, which are fp32 or as profiled where it keeps them in full."""
        return OPTIMIZERS[self.optimizer].state_bytes(4 if self.precision else profiled)

    @property
    def master_width(self) -> int:
        """Bytes a parameter of the master weights, which only an optimizer needs."""
        return self.main_weight_bytes if self.mixed and self.optimizer != "none" else 0

    @property
    def master_width_of_whole(self) -> int:
        """The same where weights of 16 bits are whole, and no part of the masters (FSDP2, not resharded)."""
        return 4 if self.by_block and self.master_width else self.master_width

    def gradient_width(self, profiled: int) -> int:
        """Bytes of a gradient of a weight that takes `profiled` bytes in the profile."""
        return max(self.width(profiled), self.gradient_bytes if self.mixed else 0)

    @property
    def fragmentation(self) -> float:
        """Part of what is allocated that the allocator reserves besides, at most: 0.10 where it is usually 0.07."""
        return self.reserved / 0.7

    def loss_work_bytes(self, tensor: int) -> int:
        """Bytes alive of a 16-bit logit at the loss's peak beyond the 4 that are kept, under a tensor degree."""
        return self.loss_bytes - 4 + self.divided_loss_bytes * (tensor > 1)

    def worst_loss_bytes(self, tensor: int) -> int:
        """Return the same at most: where a loss copies logits, whoever called it may still hold them.

        So does PyTorch's own: the logit, its copy in fp32, its softmax and the gradient of that, 14 bytes. A loss that
        works on the logits themselves, as fused and compiled ones do, holds them and their gradient, 4 bytes.
        """
        return self.loss_work_bytes(tensor) + 2 * (self.loss_bytes > 4)

    def bucket_of(self, num_ranks: int) -> int:
        """Bytes that are summed over a number of ranks at once."""
        return max(self.bucket_bytes, self.bucket_rank_bytes * num_ranks)

    def hides(self, what: str) -> bool:
        """Whether ``gathers`` or sums of ``tensor``-parallel gradients overlap compute."""
        own: bool | None = self.overlap_gathers if what == "gathers" else self.overlap_tensor
        return self.overlap if own is None else own
