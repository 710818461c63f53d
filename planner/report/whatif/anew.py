"""The problem that a plan answered, under changes: for the plan that would now be chosen.

Leaves out the search itself.
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodel.machines.changed_cluster import with_devices
from costmodel.model.profile import Profile
from planner.plan import Plan
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.reask import num_devices_asked, planned_anew
from planner.report.whatif.plan_changes import changed_cluster
from planner.report.whatif.settings import DEVICES, MICROBATCHES, SCHEDULE, Change

MACHINES = ("link", "device", "rank")


def problem_under(plan: Plan, profiles: Sequence[Profile], changes: Sequence[Change], effort: Effort) -> Problem:
    """Return the problem of a plan under changes of machines, devices, batch and schedule.

    A cluster that was given grows by hosts like its last; a typical or measured one is made anew for as many devices.
    """
    whole = {change.kind: change for change in changes if change.kind in (DEVICES, MICROBATCHES, SCHEDULE)}
    count = int(whole[DEVICES].number) if DEVICES in whole else num_devices_asked(plan)
    own = plan.assumptions.links in ("given", "") or count == plan.cluster.num_devices
    problem = planned_anew(plan, profiles, with_devices(plan.cluster, count) if own else None, count, effort)
    machines = [change for change in changes if change.kind in MACHINES]
    if machines:
        problem = replace(problem, cluster=changed_cluster(problem.machines, machines))
    if MICROBATCHES in whole:
        problem = replace(problem, global_batch=int(whole[MICROBATCHES].number) * plan.batch.microbatch_size)
    return replace(problem, schedule=whole[SCHEDULE].text) if SCHEDULE in whole else problem
