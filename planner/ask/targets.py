"""Which trainers take a plan, and why another does not: one table of rules.

A rule looks at the plan alone. Sources: torchtitan's `pipeline_parallel.py` and torch's `schedules.py` (which
schedules, whole modules to a stage), Megatron-LM's arguments (whole layers in a line, V chunks in a loop, one
configuration), DeepSpeed's `PipelineModule` (a line, one stage a device, ZeRO-2 and 3 without a pipeline only). Leaves
out versions of these trainers, and whether they have the model at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import RECOMPUTE, StageConfig
from costmodel.stages.strategies import EXECUTOR
from planner.ask.problem import ANY, Problem
from planner.graph.layers import holds_whole_layers, why_undivided
from planner.plan import Plan
from planner.plan.gathering import gathering_problem

Names = tuple[str, ...]
LINES = ("gpipe", "1f1b", "graph-1f1b")
"""Schedules of one stage a rank that every pipeline trainer has; on a line graph-1f1b is 1f1b."""
TORCH = (*LINES, "interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "dualpipe-v")


@dataclass(frozen=True)
class Job:
    """A plan with its model."""

    plan: Plan
    graph: OperatorGraph

    @property
    def is_line(self) -> bool:
        """Whether each stage feeds the next and no other."""
        ends = [(edge.source, edge.target) for edge in self.plan.edges]
        return sorted(ends) == list(pairwise(range(len(self.plan.stages))))

    @property
    def is_uniform(self) -> bool:
        """Whether all stages are configured alike, one micro-batch an action."""
        return len({(stage.config, stage.microbatch_multiple) for stage in self.plan.stages}) == 1 and (
            self.plan.stages[0].microbatch_multiple == 1
        )

    @property
    def places(self) -> list[tuple[int, ...]]:
        """The ranks that hold stages, each set once, in order of its first stage."""
        return list(dict.fromkeys(stage.ranks for stage in self.plan.stages))

    @property
    def is_loop(self) -> bool:
        """Whether stage c p + r is at place r of p, everywhere equally many."""
        places, stages = self.places, self.plan.stages
        looped = all(stage.ranks == places[i % len(places)] for i, stage in enumerate(stages))
        return looped and len(stages) % len(places) == 0

    @property
    def has_whole_layers(self) -> bool:
        """Whether no block of the model is divided between stages."""
        return holds_whole_layers(self.graph, [stage.operators for stage in self.plan.stages])


Rule = Callable[[Job], str]
"""Returns why a job is not taken, or nothing."""


def config_refusal(target: str, config: StageConfig, pipelined: bool) -> str:
    """Return what of a stage's configuration a target does not run, nothing where it runs all of it."""
    degrees, zeros, recompute, offload = _taken(target, pipelined)
    divided = [name for name in ("tensor", "sequence", "context", "expert") if getattr(config, name) > 1]
    wrong = [name for name in divided if name not in degrees]
    within = " within a pipeline" if target == "deepspeed" and pipelined else ""
    if wrong:
        return f"{wrong[0]} parallelism{within}"
    if config.zero not in zeros:
        return f"ZeRO-{config.zero}{within}"
    if target == EXECUTOR and config.zero == 1 and config.tensor > 1:
        return "ZeRO-1 and tensor parallelism together"
    if config.recompute not in recompute:
        return f"{config.recompute} recompute"
    return "" if config.offload in offload else f"offload of {config.offload}"


def _taken(target: str, pipelined: bool) -> tuple[Names, tuple[int, ...], Names, Names]:
    """Return what a target runs inside stages: degrees, stages of ZeRO, recompute, offload."""
    every = ("tensor", "sequence", "context", "expert")
    if target == EXECUTOR:
        return ("tensor",), (0, 1, 2, 3), ("none", "full"), ("none",)
    if target == "torchtitan":
        return every, (0, 2, 3), RECOMPUTE, ("none",)
    if target == "megatron":
        return every, (0, 1), RECOMPUTE, ("none",)
    return (
        (("tensor",), (0, 1), ("none", "full"), ("none", "optimizer", "parameters"))
        if pipelined
        else (("tensor", "expert"), (0, 1, 2, 3), ("none", "full"), ("none", "optimizer", "parameters"))
    )


def _inside(target: str) -> Rule:
    def rule(job: Job) -> str:
        pipelined = len(job.plan.stages) > 1
        found = (config_refusal(target, stage.config, pipelined) for stage in job.plan.stages)
        return next(filter(None, found), "")

    return rule


def _executor(job: Job) -> str:
    """Return what the executor lacks beside configurations: a forward run again stands in its orders."""
    plan = job.plan
    remade = [i for i, stage in enumerate(plan.stages) if stage.config.recompute != "none" and stage.cost.backward]
    again = {text.split("R")[0] for order in plan.orders for text in order if "R" in text and text[-1].isdigit()}
    if any(str(i) not in again for i in remade):
        return "recompute block by block (it runs a stage's whole forward again)"
    if not any(stage.config.divides for stage in plan.stages):
        return ""
    degrees = [stage.config.tensor for stage in plan.stages]
    home = {name: number for number, stage in enumerate(plan.stages) for name in stage.operators}
    undivided = why_undivided(job.graph, [home[operator.name] for operator in job.graph.operators], degrees)
    return undivided or _tied(job) or gathering_problem(plan)


def _tied(job: Job) -> str:
    """Return which parameter a stage that divides its own shares with another; nothing where none is."""
    graph, stages = job.graph, job.plan.stages
    readers: dict[str, set[int]] = {}
    for number, stage in enumerate(stages):
        for name in (
            name for operator in stage.operators for name in graph.operators[graph.index[operator]].parameters
        ):
            readers.setdefault(name, set()).add(number)
    for name, numbers in readers.items():
        divides = any(stages[i].config.divides for i in numbers)
        if len(numbers) > 1 and divides and graph.parameter_index[name].trainable:
            return f"the parameter {name!r} in the stages {sorted(numbers)}, one of which divides its own"
    return ""


def _pipelined(job: Job) -> str:
    """Return what no trainer of lines takes."""
    if not job.is_line:
        return "stages that form no line"
    if not job.is_uniform:
        return "stages configured differently"
    return ""


def _torchtitan(job: Job) -> str:
    if not job.is_loop:
        return "unequal numbers of stages on the ranks"
    if not job.has_whole_layers:
        return "a layer divided between two stages"
    return "" if job.plan.schedule in TORCH else f"the schedule {job.plan.schedule}, which torch does not have"


def _megatron(job: Job) -> str:
    plan, places = job.plan, len(job.places)
    if not job.is_loop:
        return "stages that are not placed in a loop"
    if not job.has_whole_layers:
        return "a layer divided between two stages"
    looped = len(plan.stages) > places
    if plan.schedule not in (("interleaved-1f1b",) if looped else ("1f1b", "graph-1f1b")):
        return f"the schedule {plan.schedule}"
    if looped and plan.batch.num_microbatches // plan.stages[0].config.data % places:
        return f"micro-batches of a replica that {places} ranks of the pipeline do not divide"
    return ""


def _deepspeed(job: Job) -> str:
    if len(job.plan.stages) > len(job.places):
        return "several stages on a rank"
    if len(job.plan.stages) > 1 and job.plan.schedule not in ("1f1b", "graph-1f1b"):
        return f"the schedule {job.plan.schedule}"
    return ""


RULES: dict[str, tuple[Rule, ...]] = {
    EXECUTOR: (_inside(EXECUTOR), _executor),
    "torchtitan": (_pipelined, _inside("torchtitan"), _torchtitan),
    "megatron": (_pipelined, _inside("megatron"), _megatron),
    "deepspeed": (_pipelined, _inside("deepspeed"), _deepspeed),
}
"""Rules of each target, asked in turn."""
TARGETS = (*RULES, ANY)
LINE_TARGETS = tuple(name for name, rules in RULES.items() if _pipelined in rules)
"""Targets that run stages in one line alone."""


def in_line(problem: Problem) -> bool:
    """Whether tensors must pass from stage to next stage: the chain planner, and trainers of lines."""
    return problem.planner == "chain" or problem.target in LINE_TARGETS


def why_not(target: str, problem: Problem, plan: Plan) -> str:
    """Return what of a plan a target does not take; nothing where it takes all."""
    job = Job(plan, problem.profile.graph)
    if target == EXECUTOR and _no_module(problem):
        return _no_module(problem)
    return next(filter(None, (rule(job) for rule in RULES[target])), "")


def config_not_run(target: str, problem: Problem, config: StageConfig, pipelined: bool) -> str:
    """Return why a target does not run stages configured so, nothing where it does; any runs all."""
    if target not in RULES:
        return ""
    return (_no_module(problem) if target == EXECUTOR else "") or config_refusal(target, config, pipelined)


def _no_module(problem: Problem) -> str:
    """Return why the executor cannot run a problem's model at all."""
    if not problem.has_module:
        return problem.profile.origin.plan_only
    if problem.precision_name not in ("", problem.profiled_precision):
        return f"{problem.precision_name}: it trains in the profile's own precision, {problem.profiled_precision}"
    return ""


def runs_on(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return the targets that take a plan."""
    return tuple(name for name in RULES if not why_not(name, problem, plan))


def refusal(problem: Problem, plan: Plan) -> str:
    """Return why the target that was asked for does not take a plan, with the way out; nothing where it does."""
    if problem.target not in RULES or problem.target in plan.runs_on:
        return ""
    return refused(problem, why_not(problem.target, problem, plan))


def refused(problem: Problem, reason: str) -> str:
    """Say that the target that was asked for does not take a plan, with the way out."""
    return (
        f"--target {problem.target} does not take this plan: {reason}; change that, or take --target {ANY} to price it "
        "all the same"
    )


def default_target(problem: Problem) -> tuple[str, str]:
    """Return the target of a problem that names none, and why it is wider than the executor, if it is.

    The executor where there is a module that it can run. A choice fixed by flag that it does not run widens that to
    any.
    """
    if not problem.has_module:
        return ANY, ""
    space = problem.space
    config = StageConfig(
        data=max(2, space.expert or 1),
        tensor=space.tensor or 1,
        sequence=(space.tensor or 2) if space.sequence_parallel else 1,
        context=space.context or 1,
        expert=space.expert or 1,
        zero=space.zero or 0,
        recompute=space.recompute or "none",
        offload=space.offload or "none",
    )
    pinned = [pin.config for pin in problem.pins.stages if pin.config] if problem.pins else []
    why = next(filter(None, (config_refusal(EXECUTOR, each, pipelined=True) for each in (config, *pinned))), "")
    if not why and problem.precision not in ("", problem.profiled_precision):
        why = problem.precision
    return (ANY, f"the executor does not run {why}: --target {ANY}") if why else (EXECUTOR, "")
