"""Which trainers take a plan, and why another does not: one table of rules.

A rule looks at the plan alone. Sources: torchtitan's `pipeline_parallel.py` and torch's `schedules.py` (which
schedules, whole modules to a stage), Megatron-LM's arguments (whole layers in a line, V chunks in a loop, one
configuration), DeepSpeed's `PipelineModule` (a line, one stage a device, ZeRO-2 and 3 without a pipeline only). Leaves
out versions of these trainers, and whether they have the model at all.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import Profile
from planner.layers import holds_whole_layers
from planner.plan import Plan
from planner.problem import Problem

ANY = "any"
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

    def degrees(self, *names: str) -> list[str]:
        """Return those of some degrees that are above 1 somewhere."""
        return [n for n in names if any(getattr(stage.config, n) > 1 for stage in self.plan.stages)]

    def uses(self, name: str, *allowed: object) -> list[str]:
        """Return what stages have of a choice beside what is allowed."""
        found = dict.fromkeys(getattr(stage.config, name) for stage in self.plan.stages)
        return [str(value) for value in found if value not in allowed]


Rule = Callable[[Job], str]
"""Returns why a job is not taken, or nothing."""


def _executor(job: Job) -> str:
    plan = job.plan
    divided = job.degrees("tensor", "sequence", "context", "expert")
    if divided:
        return f"{divided[0]} parallelism"
    zero, offload = job.uses("zero", 0, 1), job.uses("offload", "none")
    if zero or offload:
        return f"ZeRO-{zero[0]}" if zero else f"offload of {offload[0]}"
    remade = [i for i, stage in enumerate(plan.stages) if stage.config.recompute != "none" and stage.cost.backward]
    again = {text.split("R")[0] for order in plan.orders for text in order if "R" in text and text[-1].isdigit()}
    if job.uses("recompute", "none", "full") or any(str(i) not in again for i in remade):
        return "recompute block by block (it runs a stage's whole forward again)"
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
    if job.plan.schedule not in TORCH:
        return f"the schedule {job.plan.schedule}, which torch does not have"
    if job.uses("zero", 0, 2, 3):
        return "ZeRO-1 (its FSDP shards gradients too: ZeRO-2, or 3)"
    return "offload" if job.uses("offload", "none") else ""


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
    return f"ZeRO-{job.uses('zero', 0, 1)[0]}" if job.uses("zero", 0, 1) else _no_offload(job)


def _no_offload(job: Job) -> str:
    found = job.uses("offload", "none")
    return f"offload of {found[0]}" if found else ""


def _deepspeed(job: Job) -> str:
    stages = job.plan.stages
    if len(stages) > len(job.places):
        return "several stages on a rank"
    if len(stages) > 1 and job.plan.schedule not in ("1f1b", "graph-1f1b"):
        return f"the schedule {job.plan.schedule}"
    if len(stages) > 1 and job.uses("zero", 0, 1):
        return f"ZeRO-{job.uses('zero', 0, 1)[0]} within a pipeline"
    divided = job.degrees("context", "sequence", *(("expert",) if len(stages) > 1 else ()))
    if divided:
        return f"{divided[0]} parallelism" + (" within a pipeline" if divided[0] == "expert" else "")
    if job.uses("recompute", "none", "full"):
        return "selective recompute"
    return (
        f"offload of {job.uses('offload', 'activations')[0]}"
        if job.uses("offload", "none", "optimizer", "parameters")
        else ""
    )


RULES: dict[str, tuple[Rule, ...]] = {
    "executor": (_executor,),
    "torchtitan": (_pipelined, _torchtitan),
    "megatron": (_pipelined, _megatron),
    "deepspeed": (_pipelined, _deepspeed),
}
"""Rules of each target, asked in turn."""
TARGETS = (*RULES, ANY)
LINE_TARGETS = tuple(name for name, rules in RULES.items() if _pipelined in rules)
"""Targets that run stages in one line alone."""


def in_line(problem: Problem) -> bool:
    """Whether tensors must pass from stage to next stage: the chain planner, and trainers of lines."""
    return problem.planner == "chain" or problem.target in LINE_TARGETS


def why_not(target: str, plan: Plan, graph: OperatorGraph) -> str:
    """Return what of a plan a target does not take; nothing where it takes all."""
    job = Job(plan, graph)
    return next(filter(None, (rule(job) for rule in RULES[target])), "")


def runs_on(plan: Plan, graph: OperatorGraph, without: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the targets that take a plan, those of `without` left out."""
    return tuple(name for name in RULES if name not in without and not why_not(name, plan, graph))


def refusal(target: str, plan: Plan, profile: Profile) -> str:
    """Return why a target that was asked for does not take a plan, with the way out; nothing where it does."""
    if target not in RULES or target in plan.runs_on:
        return ""
    reason = why_not(target, plan, profile.graph) or str(profile.extra.get("plan_only"))
    return (
        f"--target {target} does not take this plan: {reason}; change that, or take --target {ANY} to price it all the "
        "same"
    )
