"""Which trainers take a plan, and why another does not.

The executor, which looks at the model too, and trainers of stages in one line (`planner.question.pipeline_support`,
and `planner.question.in_stage_support` for what stages do inside). Leaves out how plans are written for them
(`planner.export`).
"""

from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import EXECUTOR
from planner.graph.layers import why_undivided
from planner.plan import Plan
from planner.plan.gathering import gathering_problem
from planner.question.in_stage_support import config_refusal, during_compute_refusal
from planner.question.pipeline_support import LINE_RULES, not_taken
from planner.question.problem import ANY, Problem


def _executor(plan: Plan, graph: OperatorGraph) -> str:
    """Return what the executor lacks besides configurations: a forward that runs again is in its orders."""
    found = (config_refusal(EXECUTOR, stage.config, len(plan.stages) > 1) for stage in plan.stages)
    wrong = next(filter(None, found), "")
    if wrong:
        return wrong
    remade = [i for i, stage in enumerate(plan.stages) if stage.config.recompute == "full" and stage.cost.backward]
    some = {str(i) for i, stage in enumerate(plan.stages) if stage.config.recomputed_operators}
    if any(text.split("I")[0] in some for order in plan.orders for text in order if "I" in text and text[-1].isdigit()):
        return "recompute of some operators of a stage whose backward is split"
    again = {text.split("R")[0] for order in plan.orders for text in order if "R" in text and text[-1].isdigit()}
    if any(str(i) not in again for i in remade):
        return "recompute block by block (it runs a stage's whole forward again)"
    if not any(stage.config.divides for stage in plan.stages):
        return ""
    degrees = [stage.config.tensor for stage in plan.stages]
    home = {name: number for number, stage in enumerate(plan.stages) for name in stage.operators}
    undivided = why_undivided(graph, [home[operator.name] for operator in graph.operators], degrees)
    return undivided or _tied(plan, graph) or gathering_problem(plan)


def _tied(plan: Plan, graph: OperatorGraph) -> str:
    """Return which parameter a stage that divides its own shares with another; nothing where none is."""
    stages = plan.stages
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


LINE_TARGETS = tuple(LINE_RULES)
"""Targets that run stages in one line alone."""
RUNNERS = (EXECUTOR, *LINE_TARGETS)
TARGETS = (*RUNNERS, ANY)


def in_line(problem: Problem) -> bool:
    """Whether tensors must pass from stage to next stage: the chain planner, and trainers of lines."""
    return problem.planner == "chain" or problem.target in LINE_TARGETS


def why_not(target: str, problem: Problem, plan: Plan) -> str:
    """Return what of a plan a target does not take; nothing where it takes all."""
    if target != EXECUTOR:
        return not_taken(target, plan)
    return _no_module(problem) or _executor(plan, problem.profile.graph)


def config_not_run(target: str, problem: Problem, config: StageConfig, pipelined: bool) -> str:
    """Return why a target does not run stages configured so, nothing where it does; any runs all."""
    if target not in RUNNERS:
        return ""
    why = (_no_module(problem) if target == EXECUTOR else "") or config_refusal(target, config, pipelined)
    if why or not problem.training.overlap_experts:
        return why
    return during_compute_refusal(target, config, pipelined=pipelined, looped=True)


def _no_module(problem: Problem) -> str:
    """Return why the executor cannot run a problem's model at all."""
    if not problem.has_module:
        return problem.profile.origin.plan_only
    if problem.precision_name not in ("", problem.profiled_precision):
        return f"{problem.precision_name}: it trains in the profile's own precision, {problem.profiled_precision}"
    return ""


def runs_on(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return the targets that take a plan."""
    return tuple(name for name in RUNNERS if not why_not(name, problem, plan))


def refusal(problem: Problem, plan: Plan) -> str:
    """Return why the target that was asked for does not take a plan, with the way out; nothing where it does."""
    if problem.target not in RUNNERS or problem.target in plan.runs_on:
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
        data=2 * (space.expert or 1) * (space.expert_tensor or 1),
        tensor=space.tensor or 1,
        sequence=(space.tensor or 2) if space.sequence_parallel else 1,
        context=space.context or 1,
        expert=space.expert or 1,
        expert_tensor=space.expert_tensor or 0,
        zero=space.zero or 0,
        recompute=space.recompute or "none",
        offload=space.offload or "none",
    )
    pinned = [pin.config for pin in problem.pins.stages if pin.config] if problem.pins else []
    why = next(filter(None, (config_refusal(EXECUTOR, each, pipelined=True) for each in (config, *pinned))), "")
    if not why and problem.precision not in ("", problem.profiled_precision):
        why = problem.precision
    return (ANY, f"the executor does not run {why}: --target {ANY}") if why else (EXECUTOR, "")
