"""What a plan says of itself besides its orders: the training it is for, who runs it, what its memory is made of.

Of other trainers than the executor it knows what holds in all their versions: stages in one line, all configured alike.
Leaves out their schedules and whole layers (`planner.question.targets`).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig, but_operators
from planner.checker.problem import PlanProblem
from planner.plan import REPLICATE, Plan
from planner.plan.gathering import gathering_problem

DTYPES = ("float64", "float32", "bfloat16", "float16")
OPTIMIZERS = ("none", "sgd", "momentum", "adam", "adam-16bit", "adam-8bit", "lion", "adafactor", "muon")
LINE_TRAINERS = {
    "torchtitan": ((0, 2, 3), ("none",), (2, 3)),
    "megatron": ((0, 1), ("none",), (1,)),
    "deepspeed": ((0, 1, 2, 3), ("none", "optimizer", "parameters"), (3,)),
}
"""Trainers of stages in one line, with the ZeRO and the offload that they have, and the ZeRO in shard groups."""


def claim_problems(plan: Plan, graph: OperatorGraph | None = None) -> Iterator[PlanProblem]:
    """Yield claims that the plan's own orders, configurations and terms contradict."""
    yield from _training_problems(plan)
    if "executor" in plan.runs_on:
        yield from executor_problems(plan)
        yield from tied_problems(plan, graph)
    yield from _trainer_problems(plan)
    for index, stage in enumerate(plan.stages):
        terms = sum(size for _, size in stage.cost.memory_terms)
        if stage.cost.memory_terms and terms != stage.cost.static_bytes:
            yield PlanProblem(
                "memory", f"stage {index}", f"static_bytes is {stage.cost.static_bytes}; its terms add up to {terms}"
            )


def _training_problems(plan: Plan) -> Iterator[PlanProblem]:
    """Yield an optimizer that the orders do not step, and words that mean nothing."""
    name = plan.training.optimizer
    steps = any(text.endswith("OPT") for order in plan.orders for text in order)
    if name and name not in OPTIMIZERS:
        yield PlanProblem("training", "training.optimizer", f"{name!r}; allowed are {', '.join(OPTIMIZERS)}")
    elif name == "none" and steps:
        yield PlanProblem("training", "training.optimizer", "none, and the orders hold OPT")
    elif name not in ("", "none") and not steps and any(stage.cost.backward for stage in plan.stages):
        yield PlanProblem("training", "training.optimizer", f"{name}, and the orders hold no OPT")


def _trainer_problems(plan: Plan) -> Iterator[PlanProblem]:
    """Yield trainers that nobody knows, and those that do not take the plan's stages."""
    for name in plan.runs_on:
        if name not in ("executor", *LINE_TRAINERS):
            known = ", ".join(("executor", *LINE_TRAINERS))
            yield PlanProblem("target", "runs_on", f"{name!r}; allowed are {known}")
        elif name != "executor" and (wrong := _not_taken(plan, *LINE_TRAINERS[name])):
            yield PlanProblem("target", "runs_on", f"{name}, which does not take {wrong}")


def _not_taken(plan: Plan, zeros: Sequence[int], offloads: Sequence[str], grouped: Sequence[int]) -> str:
    """Return what a trainer of lines lacks, nothing where it lacks nothing that is known here."""
    if sorted((edge.source, edge.target) for edge in plan.edges) != list(pairwise(range(len(plan.stages)))):
        return "stages that form no line"
    first = plan.stages[0]
    if any((but_operators(s.config), s.microbatch_multiple) != (but_operators(first.config), 1) for s in plan.stages):
        return "stages configured differently"
    if first.config.zero not in zeros:
        return f"ZeRO-{first.config.zero}"
    if first.config.shard_group and first.config.zero not in grouped:
        return f"ZeRO-{first.config.zero} in shard groups of {first.config.shard_group}"
    return "" if first.config.offload in offloads else f"offload of {first.config.offload}"


def executor_problems(plan: Plan, *, divides: bool = False) -> Iterator[PlanProblem]:
    """Yield what of a plan the executor does not run: it runs replicas, ZeRO, tensor degrees and full recompute.

    And sequences and experts that are divided where a function of the user's `divides` stages.
    """
    for key, value in (("dtype", plan.training.dtype), ("autocast", plan.training.autocast)):
        if value and value not in DTYPES:
            yield PlanProblem("training", f"training.{key}", f"{value!r}; the executor runs {', '.join(DTYPES)}")
    for index, stage in enumerate(plan.stages):
        config = stage.config
        degrees = ("context",) if divides else ("sequence", "context", "expert")
        wrong = [name for name in degrees if getattr(config, name) > 1]
        wrong += ["recompute"] if config.recompute == "selective" else []
        wrong += ["offload"] if config.offload != "none" else []
        for name in wrong:
            yield PlanProblem(
                "target",
                f"stage {index}",
                f"has config.{name} = {getattr(config, name)}; the executor runs replicas, tensor degrees, ZeRO and "
                "full recompute, and experts and sequences divided by Pipeline's parallelize=: plan with --target "
                "executor",
            )
        if why := _not_together(config):
            yield PlanProblem("target", f"stage {index}", f"has {why}")
    for edge in plan.edges:
        lanes = plan.stages[edge.source].config.tensor * plan.stages[edge.source].config.context
        if edge.border != REPLICATE and lanes > 1 and not divides:
            yield PlanProblem(
                "target",
                f"edge {edge.source} -> {edge.target}",
                f"the border is {edge.border}, and the executor leaves sequences divided by Pipeline's parallelize= "
                "alone: plan without --sequence-parallel",
            )
    if problem := gathering_problem(plan):
        yield PlanProblem("target", "runs_on", f"executor, and {problem}")


def _not_together(config: StageConfig) -> str:
    """Return which degrees of a stage the executor does not have together, with the way out; nothing where it does."""
    if config.zero == 1 and config.tensor > 1:
        return f"ZeRO-1 and tensor = {config.tensor} together; plan with --zero 0 or 2"
    if config.zero == 1 and config.num_expert_parts > config.tensor:
        return f"ZeRO-1 and expert = {config.expert} together; plan with --zero 0 or 2"
    if config.num_expert_parts not in (1, config.tensor, config.data * config.tensor):
        return (
            f"expert = {config.expert} among {config.data} replicas, and each replica has experts of its own in the "
            "executor: plan with --expert 1, or as many as replicas (as ranks, with --expert-tensor 1)"
        )
    return ""


def tied_problems(plan: Plan, graph: OperatorGraph | None) -> Iterator[PlanProblem]:
    """Yield parameters that stages share of which one divides them: in the executor their gradients do not add up."""
    readers: dict[str, list[int]] = {}
    for index, stage in enumerate(plan.stages):
        rows = [graph.operators[graph.index[name]].parameters for name in stage.operators] if graph else []
        for name in dict.fromkeys(name for row in rows for name in row):
            if graph and graph.parameter_index[name].trainable:
                readers.setdefault(name, []).append(index)
    for name, stages in readers.items():
        divided = [stage for stage in stages if plan.stages[stage].config.divides]
        if len(stages) > 1 and divided:
            config = plan.stages[divided[0]].config
            degrees = [key for key in ("tensor", "expert") if getattr(config, key) > 1]
            what = f"{degrees[0]} = {getattr(config, degrees[0])}" if degrees else f"ZeRO-{config.zero}"
            yield PlanProblem(
                "target",
                f"stages {' and '.join(map(str, stages))}",
                f"share the parameter {name!r}, and stage {divided[0]} has {what}: pin what reads it into one stage",
            )
