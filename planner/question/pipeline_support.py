"""Trainers that run stages in one line, and why one of them does not take a plan: rules that look at the plan alone.

A plan's `runs_on` and ``penstock export`` ask the same rules, so what is listed can be exported. Sources: torchtitan's
`pipeline_parallel.py` and torch's `schedules.py` (any orders, as a CSV), Megatron-LM's arguments and layouts (whole
layers, V chunks in a loop, its own two schedules), DeepSpeed's `PipelineModule` (one stage a device). Megatron-LM's
models learn from tokens; which of them it has, and versions of these trainers, are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

from costmodel.stages.config import but_operators
from planner.graph.layout import layer_letters, layout_problem, part_letters
from planner.graph.model_parts import model_part_names
from planner.plan import Plan
from planner.plan.provenance import of_a_sample
from planner.plan.rank_order import RankOrder, rank_order_of
from planner.plan.replica import places_of, replica_orders
from planner.question.in_stage_support import config_refusal, during_compute_refusal, rank_order_refusal


@dataclass(frozen=True)
class Job:
    """A plan as such a trainer sees it."""

    plan: Plan

    @property
    def num_stages(self) -> int:
        """How many stages it has."""
        return len(self.plan.stages)

    @property
    def is_line(self) -> bool:
        """Whether each stage feeds the next and no other."""
        ends = [(edge.source, edge.target) for edge in self.plan.edges]
        return sorted(ends) == list(pairwise(range(self.num_stages)))

    @property
    def is_uniform(self) -> bool:
        """Whether all stages are configured alike but for operators that run again, one micro-batch an action."""
        return {(but_operators(stage.config), stage.microbatch_multiple) for stage in self.plan.stages} == {
            (but_operators(self.plan.stages[0].config), 1)
        }

    @cached_property
    def layers_again(self) -> int | None:
        """How many of each stage's layers run again, the first ones or all that it has; None where other operators do.

        Operators are of the layer with which their names begin, as those of described models.
        """
        stages = self.plan.stages
        if not any(stage.config.recomputed_operators for stage in stages):
            return 0
        letters = part_letters(list(chain.from_iterable(self.parts)))
        held, again = [], []
        for stage in stages:
            layers = [name for name in stage.modules if letters.get(name) == "t"]
            rows = [[each for each in stage.operators if each.startswith(f"{name}.")] for name in layers]
            wanted = sorted(stage.config.recomputed_operators)
            numbers = (k for k in range(len(rows) + 1) if sorted(chain.from_iterable(rows[:k])) == wanted)
            held.append(len(rows))
            again.append(next(numbers, -1))
        most = max(again)
        return most if [min(most, number) for number in held] == again else None

    @cached_property
    def places(self) -> list[tuple[int, ...]]:
        """The ranks that hold stages, each set once, in order of its first stage."""
        return places_of(self.plan)

    @property
    def place_of(self) -> list[int]:
        """The place of each stage."""
        return [self.places.index(stage.ranks) for stage in self.plan.stages]

    @property
    def is_loop(self) -> bool:
        """Whether stage c p + r is at place r of p, everywhere equally many."""
        count = len(self.places)
        return self.num_stages % count == 0 and self.place_of == [i % count for i in range(self.num_stages)]

    @property
    def is_wave(self) -> bool:
        """Whether each place holds two stages, the second ones in turn: torch's V."""
        there = list(range(len(self.places)))
        return self.place_of == there + there[::-1]

    @cached_property
    def rank_order(self) -> RankOrder:
        """The order that its ranks follow, the usual one where several do; empty where they follow none."""
        return rank_order_of([stage.config for stage in self.plan.stages], [stage.ranks for stage in self.plan.stages])

    @property
    def parts(self) -> list[tuple[str, ...]]:
        """What each stage holds of the model; empty where the model, or an old plan, names no modules."""
        return [stage.modules for stage in self.plan.stages]


NO_MODULES = "stages of which the plan does not say which modules they hold"
Rule = Callable[[Job], str]
"""Returns why a job is not taken, or nothing."""


def _inside(target: str) -> Rule:
    def rule(job: Job) -> str:
        found = (config_refusal(target, stage.config, job.num_stages > 1) for stage in job.plan.stages)
        return next(filter(None, found), "")

    return rule


def _in_order(target: str) -> Rule:
    def rule(job: Job) -> str:
        return rank_order_refusal(target, job.rank_order, job.plan.stages[0].config)

    return rule


def _pipelined(job: Job) -> str:
    """Return what no trainer of lines takes."""
    if not job.is_line:
        return "stages that form no line"
    return "" if job.is_uniform else "stages configured differently"


def _whole_parts(job: Job) -> str:
    """Return which part of the model is in several stages."""
    if job.num_stages == 1:
        return ""
    home: dict[str, int] = {}
    for stage, row in enumerate(job.parts):
        for name in row:
            if home.setdefault(name, stage) != stage:
                return f"the module {name} divided between two stages"
    return ""


def _relayed(job: Job) -> str:
    """Return which stage only passes a tensor on, which models that are run in parts unchanged do not."""
    come = {edge.target: set(edge.tensors) for edge in job.plan.edges}
    stage = next((e.source for e in job.plan.edges if come.get(e.source, set()) & set(e.tensors)), -1)
    return "" if stage < 0 else f"stage {stage}, which passes on a tensor that it does not make"


def _torch_orders(job: Job) -> str:
    """Return what torch's runtime does not do in any order of F, B, I and W."""
    idle = next((i for i, stage in enumerate(job.plan.stages) if not stage.cost.backward), -1)
    if idle >= 0 and job.num_stages > 1:
        return f"stage {idle}, which has no backward"
    if not all(edge.gradient for edge in job.plan.edges):
        return "stages between which no gradient flows"
    return "" if replica_orders(job.plan) else "replicas that work in different orders"


def _torch_csv(job: Job) -> str:
    config = job.plan.stages[0].config
    if any(stage.config.recompute != "none" for stage in job.plan.stages):
        return "recompute, which torch's CSV of orders cannot say"
    return f"offload of {config.offload}, which torch's CSV of orders cannot say" if config.offload != "none" else ""


def _untied(job: Job) -> str:
    """Return which parameter is in several stages: torch's pipelining sums no gradients between stages."""
    shared = [name for stage in job.plan.stages for name in stage.shared]
    return f"the parameter {shared[0]} in several stages, whose gradients nobody sums there" if shared else ""


def _torchtitan(job: Job) -> str:
    if job.num_stages == 1:
        return ""
    if not all(job.parts):
        return NO_MODULES
    if not job.is_loop and not job.is_wave:
        return "stages that are placed neither in a loop nor in a V, equally many on each rank"
    return model_part_names(job.parts)[1] or _relayed(job)


def schedule_refusal(target: str, schedule: str, *, pipelined: bool, looped: bool) -> str:
    """Return why a trainer of lines does not run a schedule; `looped` says that ranks hold several stages."""
    plain = ("1f1b", "graph-1f1b")
    taken = {
        "megatron": ("interleaved-1f1b",) if looped else plain,
        "deepspeed": plain if pipelined else (schedule,),
    }
    return "" if schedule in taken.get(target, (schedule,)) else f"the schedule {schedule}"


def _megatron(job: Job) -> str:
    plan, places = job.plan, len(job.places)
    if not job.is_loop:
        return "stages that are not placed in a loop"
    if job.layers_again is None:
        return "recompute of other operators than the first layers of each stage, equally many of them"
    looped = job.num_stages > places
    if why := schedule_refusal("megatron", plan.schedule, pipelined=job.num_stages > 1, looped=looped):
        return why
    if "overlap experts" in plan.assumptions.habits and (
        why := during_compute_refusal("megatron", plan.stages[0].config, pipelined=job.num_stages > 1, looped=looped)
    ):
        return why
    if looped and plan.batch.num_microbatches // plan.stages[0].config.data % places:
        return f"micro-batches of a replica that {places} ranks of the pipeline do not divide"
    if job.num_stages == 1:
        return ""
    if not all(job.parts):
        return NO_MODULES
    rows = layer_letters(job.parts)
    if not rows:
        return "a model whose layers are not one list, as a layout has it"
    return layout_problem(rows, places) or ("" if "m" in "".join(rows) else _relayed(job))


def _of_tokens(job: Job) -> str:
    """Return that a model learns from no tokens, as images and volumes do; nothing where the plan does not say."""
    return "a model whose samples are not made of tokens" if of_a_sample(job.plan, "tokens") == 1 else ""


def _deepspeed(job: Job) -> str:
    if job.num_stages > len(job.places):
        return "several stages on a rank"
    return schedule_refusal("deepspeed", job.plan.schedule, pipelined=job.num_stages > 1, looped=False)


LINE_RULES: dict[str, tuple[Rule, ...]] = {
    "torchtitan": (
        _pipelined,
        _inside("torchtitan"),
        _in_order("torchtitan"),
        _whole_parts,
        _untied,
        _torchtitan,
        _torch_orders,
    ),
    "megatron": (_of_tokens, _pipelined, _inside("megatron"), _in_order("megatron"), _whole_parts, _megatron),
    "deepspeed": (_pipelined, _inside("deepspeed"), _in_order("deepspeed"), _whole_parts, _deepspeed),
}
"""Rules of each trainer, asked in turn."""
FORMS: dict[str, tuple[Rule, ...]] = {"torch-csv": (_pipelined, _torch_csv, _untied, _torch_orders), **LINE_RULES}
"""What a plan can be exported to: trainers, and torch's own form of orders."""


def not_taken(form: str, plan: Plan) -> str:
    """Return what of a plan a trainer of lines, or torch's CSV, does not take; nothing where it takes all."""
    job = Job(plan)
    return next(filter(None, (rule(job) for rule in FORMS[form])), "")
