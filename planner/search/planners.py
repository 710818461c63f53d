"""The table of planners: what each narrows of a question, and how it searches.

All come to the same kind of outcome, priced, simulated and bounded one way; only how candidates are generated differs.
Leaves out which of the plans found is the answer (`planner.answer`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from costmodel.errors import UsageError
from planner.plan.limited_by import LimitedBy
from planner.question.problem import Problem, Report
from planner.question.targets import default_target
from planner.question.validation import divisors
from planner.search.loop import PortfolioSearch
from planner.search.published import alpa, graphpipe, pipedream, piper
from planner.search.published.equal_parts import Weigh, equal_parts, num_operators, parameter_bytes
from planner.search.published.megatron_uniform import megatron_uniform
from planner.search.published.rival import Rival, search
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.state.result import SearchBound, SearchOutcome


def ours(problem: Problem, report: Report | None) -> SearchOutcome:
    """Plan a graph of stages; what is to be proved ranges over what the target runs, and so it is named."""
    if problem.exact:
        problem = replace(problem, target=problem.target or default_target(problem)[0])
    return PortfolioSearch(problem, report).run()


def single(problem: Problem, report: Report | None) -> SearchOutcome:
    """Put everything on one device."""
    return PortfolioSearch(_narrowed(problem, stages=1, data=1, tensor=1, context=1), report).run()


def data_parallel(problem: Problem, report: Report | None) -> SearchOutcome:
    """Give every device a replica of the whole model: the most replicas that divide the batch, nothing sharded."""
    most = max(d for d in divisors(problem.global_batch) if d <= problem.num_devices)
    data, zero = problem.space.data or most, problem.space.zero or 0
    fixed = {"stages": 1, "data": data, "tensor": 1, "context": 1, "expert": 1, "zero": zero, "offload": "none"}
    return PortfolioSearch(_narrowed(problem, **fixed), report).run()


def uniform(problem: Problem, report: Report | None) -> SearchOutcome:
    """Give every stage the same number of operators."""
    return _equal(problem, report, num_operators)


def parameters(problem: Problem, report: Report | None) -> SearchOutcome:
    """Give every stage the same bytes of parameters."""
    return _equal(problem, report, parameter_bytes)


RIVALS = (
    Rival("pipedream", pipedream.propose, line=True),
    Rival("piper", piper.propose, line=True, limit=piper.LIMIT),
    Rival("alpa", alpa.propose, line=True),
    Rival("graphpipe", graphpipe.propose, line=False),
)
"""Planners that optimise an objective of their own."""
PLANNERS: dict[str, Callable[[Problem, Report | None], SearchOutcome]] = {
    "ours": ours,
    "chain": ours,  # the same search for lines, tensors relayed from stage to stage (`FamilyPartitions.always_line`)
    "single": single,
    "data-parallel": data_parallel,
    "uniform": uniform,
    "parameters": parameters,
    "megatron-uniform": megatron_uniform,
    **{rival.name: partial(search, rival) for rival in RIVALS},
}
"""Every planner by its name."""


def _narrowed(problem: Problem, **fixed: object) -> Problem:
    """Fix choices that a planner makes by its nature.

    Raises
    ------
    UsageError
        Where a flag fixes another value.
    """
    space = problem.space
    wrong = [f"{name} {getattr(space, name)}" for name, value in fixed.items() if not space.allows(name, value)]
    if wrong:
        raise UsageError(
            f"--planner {problem.planner} means {', '.join(f'{name} {value}' for name, value in fixed.items())}, and "
            f"{', '.join(wrong)} is fixed; drop one of the two"
        )
    return replace(problem, space=replace(space, **fixed))  # type: ignore[arg-type]


def _equal(problem: Problem, report: Report | None, weigh: Weigh) -> SearchOutcome:
    """Cut in equal parts; of what flags leave open, devices are stages and nothing else."""
    space = problem.space
    usual = {"data": 1, "tensor": 1, "context": 1, "expert": 1, "chunks": 1, "zero": 0, "recompute": "none",
             "offload": "none", "sequence_parallel": False, "expert_tensor": space.tensor or 1}  # fmt: skip
    fixed = {name: value for name, value in usual.items() if getattr(space, name) is None}
    if space.stages is not None and space.data is None:
        left = problem.num_devices // (space.stages * (space.tensor or 1) * (space.context or 1))
        fixed["data"] = max(1, left)
    narrowed = replace(problem, space=replace(space, **fixed))  # type: ignore[arg-type]
    prepared = PreparedProblem(narrowed)
    pool = CandidatePool(narrowed, narrowed.target or default_target(narrowed)[0], prepared.layer_alignment, report)
    equal_parts(prepared, pool, weigh)
    bound_ns = min(map(prepared.free_bounds.closed_form_ns, prepared.families.all), default=0)
    return SearchOutcome(prepared, pool, SearchBound(bound_ns), {}, LimitedBy.EXHAUSTED, True)
