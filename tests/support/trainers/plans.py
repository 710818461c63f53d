"""Plans of the small described Llama, by how their stages are configured."""

from itertools import pairwise

from costmodel.stages.config import StageConfig
from planner.export.given import Given, given_plan
from planner.plan import Plan
from planner.question.problem import Problem
from tests.support.described_models import described


def plan_of(config: StageConfig, stages: int = 1) -> Plan:
    """A plan of the small Llama, 16 samples a step in micro-batches of one, all stages configured alike."""
    devices = stages * config.data * config.tensor * config.context
    problem = Problem(described("llama"), None, devices, 16, 1, target="any", trainer="torchtitan", precision="bf16")
    parts, count = problem.profile.graph.parts, len(problem.profile.graph.parts)
    borders = [0, *(next(i for i in range(count * s // stages, count) if parts[i] != parts[i - 1])
                    for s in range(1, stages)), count]  # fmt: skip
    rows = tuple(tuple(range(a, b)) for a, b in pairwise(borders))
    return given_plan(problem, Given("the test", rows, tuple(range(stages)), config, "1f1b"))
