"""How one configuration divides operators, tensors and parameters among the ranks of a stage.

Sources: Shoeybi et al., Megatron-LM, 2019 (tensor); Korthikanti et al., 2022 (sequence); Liu et al., Ring Attention,
2023 (context); Lepikhin et al., GShard, 2020 (expert); Liu et al., MoE Parallel Folding, 2025 (experts over tensor
ranks). Parts that do not come out even are rounded up. Leaves out
uneven loads of experts and of the causal mask's halves (both balanced by trainers of today to a few per cent).
"""

from dataclasses import dataclass, replace

from costmodel.errors import UsageError
from costmodel.model.graph import Operator, OperatorGraph, Parameter
from costmodel.model.work import Work
from costmodel.stages.config import StageConfig

WITHIN_TENSOR = ("column", "inner")
"""Splits whose output is divided among the tensor-parallel ranks."""

ALONG_SEQUENCES = ("convolution", "scan")
"""Kinds whose parts of a sequence need each other's values, which nobody sends."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """Into how many parts tensor, sequence, context and expert parallelism divide.

    ``expert_tensor`` parts of each expert; 0 stands for the tensor degree.
    """

    tensor: int = 1
    sequence: bool = False
    context: int = 1
    expert: int = 1
    expert_tensor: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "expert_tensor", self.expert_tensor or self.tensor)

    @classmethod
    def of(cls, config: StageConfig, sequence_parallel: bool) -> "Degrees":
        """Read a stage's configuration; `sequence` is 1 or the tensor degree.

        Raises
        ------
        UsageError
            On another sequence degree, or parts of experts that the ranks do not hold alike.
        """
        if config.sequence not in (1, config.tensor):
            raise UsageError(
                f"config.sequence is {config.sequence}; sequence parallelism divides among the tensor-parallel ranks: "
                f"1 or {config.tensor}"
            )
        spread = config.num_ranks // config.expert_tensor
        if spread % config.expert:
            raise UsageError(
                f"config.expert is {config.expert}; experts spread over data {config.data} x context {config.context} "
                f"x tensor {config.tensor} ranks, / expert_tensor {config.expert_tensor}: choose a divisor of {spread}"
            )
        sequence = config.tensor > 1 and (sequence_parallel or config.sequence > 1)
        if config.expert_tensor != config.tensor > 1 and not sequence:
            raise UsageError(
                f"config.expert_tensor is {config.expert_tensor} and tensor {config.tensor}; experts that tensor ranks "
                "do not divide alike take their parts of the sequence: give --sequence-parallel"
            )
        return cls(config.tensor, sequence, config.context, config.expert, config.expert_tensor)

    @property
    def whole(self) -> bool:
        """Whether operators stay as they are."""
        return self.tensor == self.context == self.expert == self.expert_tensor == 1


def why_whole(operator: Operator, degrees: Degrees) -> str:
    """Return why an operator cannot be divided like this, with the way out; empty where it can."""
    work = operator.work
    if work is None:
        return "" if degrees.whole else _unknown(operator, degrees)
    if work.experts and work.split != "expert" and degrees.expert > 1:
        return (
            f"operator {operator.name!r} has the experts of the module {operator.module!r}, which the executor leaves "
            f"whole, and does not spread over {degrees.expert} ranks; choose expert 1, or describe the model by its "
            "config.json, whose experts trainers divide"
        )
    if work.experts and work.experts % degrees.expert:
        return (
            f"operator {operator.name!r} has {work.experts} experts, which {degrees.expert} expert-parallel ranks "
            "do not divide; choose a divisor"
        )
    if work.parts and work.parts % degrees.tensor:
        return (
            f"operator {operator.name!r} is known to divide into {work.parts} parts at most, with the layers before "
            f"it, and not into {degrees.tensor}; choose a divisor"
        )
    if work.kind in ALONG_SEQUENCES and degrees.context > 1:
        return (
            f"operator {operator.name!r} ({work.kind}, of the module {operator.module!r}) reads neighbours along the "
            f"sequence, which {degrees.context} context-parallel ranks would divide; choose context 1"
        )
    if work.kind == "attention" and work.split in WITHIN_TENSOR and work.heads % degrees.tensor:
        return (
            f"operator {operator.name!r} has {work.heads} heads, which {degrees.tensor} tensor-parallel ranks do not "
            "divide; choose a divisor"
        )
    return ""


def _unknown(operator: Operator, degrees: Degrees) -> str:
    return (
        f"operator {operator.name!r} does not say what it computes, so it cannot be divided (tensor {degrees.tensor}, "
        f"context {degrees.context}, expert {degrees.expert}; it is of the module {operator.module!r}): a module says "
        "so where its linear layers divide in pairs, or experts are there; plan it with degrees of 1, or make the "
        "profile with `penstock model`, which says which modules do not divide"
    )


def output_parts(graph: OperatorGraph, position: int, degrees: Degrees) -> int:
    """Return into how many parts an operator's output, and what it alone keeps, is divided."""
    work = graph.operators[position].work
    if work is None:
        return 1
    parts = degrees.context
    if work.split in WITHIN_TENSOR or (work.split == "expert" and feeds_experts(graph, position)):
        return parts * degrees.tensor
    return parts * degrees.tensor if degrees.sequence and work.split != "whole" else parts


def divided_along(graph: OperatorGraph, position: int, degrees: Degrees) -> int | None:
    """Return the dimension along which an operator's output is divided: 1, the sequence, or -1; None where whole."""
    work = graph.operators[position].work
    if work is None or output_parts(graph, position, degrees) == 1:
        return None
    wide = degrees.expert_tensor if work.split == "expert" else degrees.tensor
    within = work.split in WITHIN_TENSOR or (work.split == "expert" and feeds_experts(graph, position))
    return -1 if within and wide > 1 else 1


def feeds_experts(graph: OperatorGraph, position: int) -> bool:
    """Whether an output of an expert operator is read by experts again: it is divided by their inner width."""
    return any(is_expert(graph.operators[i]) for i in graph.successors[position])


def is_expert(operator: Operator) -> bool:
    """Whether an operator is one of experts."""
    return operator.work is not None and operator.work.split == "expert"


def parameter_parts(parameter: Parameter, reader: Operator, degrees: Degrees) -> int:
    """Return into how many parts a reader divides its parameter; a row's bias is whole on each rank."""
    split = reader.work.split if reader.work else "whole"
    if split == "expert":
        return degrees.expert_tensor * degrees.expert
    divided = split == "column" or (split == "row" and len(parameter.shape) > 1)
    return degrees.tensor if divided else 1


def divided_work(work: Work, degrees: Degrees, within: bool) -> Work:
    """Return what one rank does of an operator.

    Parameters
    ----------
    within : bool
        Whether an expert operator's output is divided by its width (its inner dimension is, otherwise).
    """
    parts, tokens = degrees.tensor, ceil(work.tokens, degrees.context)
    if work.kind == "attention":
        parts = parts if work.split in WITHIN_TENSOR else 1
        return replace(work, tokens=tokens, heads=ceil(work.heads, parts), kv_heads=ceil(work.kv_heads, parts))
    if work.split == "expert":
        experts = ceil(work.experts, degrees.expert) if work.experts else 0
        parts = degrees.expert_tensor
        tokens = ceil(work.tokens * parts, degrees.context * degrees.tensor)
        inner, outer = (work.inner, ceil(work.outer, parts)) if within else (ceil(work.inner, parts), work.outer)
        return replace(work, tokens=tokens, experts=experts, inner=inner, outer=outer)
    if work.split in WITHIN_TENSOR:
        return replace(work, tokens=tokens, outer=ceil(work.outer, parts))
    if work.split == "row":
        return replace(work, tokens=tokens, inner=ceil(work.inner, parts))
    shared = degrees.sequence and work.split == "sequence"
    return replace(work, tokens=ceil(tokens, parts) if shared else tokens)


def ceil(number: int, parts: int) -> int:
    """Divide rounding up."""
    return -(-number // parts)
