"""What devices lack at least, by states alone: a proof that nothing fits, which no search can find otherwise.

However stages are cut and copies sharded, a place of the pipeline holds its part of parameters, gradients and optimizer
states, on its devices or, offloaded, on their hosts; one of the stages holds at least the mean. Leaves out
activations, and all else that is held.
"""

from dataclasses import replace

from costmodel.stages.config import StageConfig
from planner.question.problem import Problem
from planner.search.space.family import Family
from planner.search.space.open_choices import allows_per_stage_replicas
from planner.search.state.prepared import PreparedProblem

STATES = ("optimizer", "parameters")
"""What is offloaded of states."""


def memory_shortfall_bytes(prepared: PreparedProblem) -> int:
    """Return how many bytes some device lacks under every plan; 0 where states prove nothing."""
    problem = prepared.problem
    if not all(problem.memory_limits_bytes):
        return 0
    least: int | None = None
    groups = prepared.families.groups()
    alike = (_states(Family(config, group.microbatch_size)) for group in groups for config in group.configs)
    for family in dict.fromkeys(alike):
        lacks = _lacks(prepared, family, prepared.families.max_pipeline_stages(family))
        if lacks <= 0:
            return 0
        least = lacks if least is None else min(least, lacks)
    if least is None or not allows_per_stage_replicas(prepared.problem, prepared.pinned):
        return least or 0
    alone = Family(StageConfig(), min(problem.microbatch_sizes))
    return max(0, min(least, _lacks(prepared, alone, problem.num_devices)))


def exceeds_host_memory(prepared: PreparedProblem, family: Family) -> bool:
    """Whether no host has room for the states that a family offloads, however it is cut."""
    if family.config.offload not in STATES:
        return False
    of, whole = prepared.families.states_bytes, replace(family, config=replace(family.config, offload="none"))
    return of(whole) - of(family) > prepared.families.max_pipeline_stages(family) * _host_share(prepared.problem)


def _states(family: Family) -> Family:
    """Return a family that keeps its states alike and represents all such."""
    return Family(replace(family.config, recompute="none"), family.microbatch_size)


def _lacks(prepared: PreparedProblem, family: Family, num_places: int) -> int:
    config, problem = family.config, prepared.problem
    room, offloads = max(problem.memory_limits_bytes), config.offload in STATES
    if offloads:
        config, room = replace(config, offload="none"), room + _host_share(problem)
    return -(-prepared.families.states_bytes(replace(family, config=config)) // num_places) - room


def _host_share(problem: Problem) -> int:
    """Return what a device has of its host's memory, the most of any."""
    return max(host.memory_bytes // host.devices for host in problem.machines.hosts)
