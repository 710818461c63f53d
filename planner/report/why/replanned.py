"""What a plan's question answers with one thing changed: one more GiB, a faster link, one more micro-batch or device.

Each is planned anew, as a user would with the flag that it names; other numbers of replicas are asked for likewise.
Leaves out changes of a plan as it is (`planner.report.why.what_if`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.changed_cluster import BANDWIDTH, capped_by_pairs, with_devices, with_link, with_memory
from costmodel.machines.cluster_parts import GIB
from planner.plan import Plan
from planner.plan.rung import rung
from planner.question.problem import Problem
from planner.question.validation import STARTED

Planner = Callable[[Problem], Plan]
Question = tuple[str, str, Problem]
"""What is changed, the flag or line of the cluster file that asks for it, and the changed problem."""


@dataclass(frozen=True, slots=True)
class Replanned:
    """The answer to a changed question; `plan` is None where none fits."""

    change: str
    how: str
    plan: Plan | None

    def gain(self, before: Plan) -> float | None:
        """By how much more samples a second than before, as a ratio - 1; None where nothing fits."""
        own = self.plan
        if own is None or not own.prediction.step_time_ns:
            return None
        faster = before.prediction.step_time_ns / own.prediction.step_time_ns
        return faster * own.batch.global_size / before.batch.global_size - 1

    def to_json(self, before: Plan) -> dict[str, object]:
        """Return the JSON form."""
        own = self.plan
        return {
            "change": self.change,
            "how": self.how,
            "step_time_ns": own.prediction.step_time_ns if own else None,
            "batch": own.batch.global_size if own else None,
            "strategy": rung(own) if own else None,
            "gain": self.gain(before),
        }


def answered(question: Question, planner: Planner) -> Replanned:
    """Plan anew."""
    change, how, problem = question
    try:
        return Replanned(change, how, planner(problem))
    except NoPlanFits:
        return Replanned(change, how, None)


def cheap_changes(plan: Plan, asked: Problem) -> Iterator[Question]:
    """Yield one more GiB a device, each link twice as fast, one more micro-batch a replica, one more device.

    The search starts from the plan (``--from``), which most changes leave possible: what helps nothing shows no loss.
    """
    problem = replace(asked, old_plan=plan) if asked.planner in STARTED else asked
    yield from _more_memory(problem)
    for group in problem.machines.groups if problem.num_devices > 1 else ():
        faster = with_link(problem.machines, group.name, BANDWIDTH, lambda rate: 2 * rate)
        rate = f"{2 * problem.machines.measured(group).bandwidth_gbs:.9g}"
        how = "; ".join([f"link {group.name}: bandwidth_gbs = {rate}", *capped_by_pairs(faster, group.name)])
        yield f"link {group.name} twice as fast", how, replace(problem, cluster=faster)
    batch = problem.global_batch + plan.batch.microbatch_size * max(stage.config.data for stage in plan.stages)
    yield "one more micro-batch on each replica", f"--batch {batch}", replace(problem, global_batch=batch)
    yield from _more_devices(plan, problem)


def _more_memory(problem: Problem) -> Iterator[Question]:
    if problem.memory_limit_bytes:
        more = problem.memory_limit_bytes + GIB
        yield (
            "one more GiB on every device",
            f"--memory-limit {more / GIB:.9g}",
            replace(problem, memory_limit_bytes=more),
        )
        return
    cluster, said = problem.machines, []
    for device in problem.machines.devices:
        if device.memory_bytes:
            cluster = with_memory(cluster, device.name, lambda size: size + GIB)
            said.append(f"device {device.name}: memory_gib = {(device.memory_bytes + GIB) / GIB:.9g}")
    if said:
        yield "one more GiB on every device", ", ".join(said), replace(problem, cluster=cluster)


def _more_devices(plan: Plan, problem: Problem) -> Iterator[Question]:
    number = problem.num_devices + 1
    cluster = with_devices(problem.machines, number) if plan.assumptions.links == "given" else None
    try:
        yield "one more device", f"--devices {number}", replace(problem, num_devices=number, cluster=cluster)
    except UsageError:  # the catalogue does not know how hosts of such devices are joined
        return


def other_replicas(plan: Plan, problem: Problem) -> Iterator[Question]:
    """Yield half and twice the plan's replicas, where all stages have as many and the question leaves it open."""
    found = {stage.config.data for stage in plan.stages}
    if len(found) > 1 or problem.space.data:
        return
    data = found.pop()
    for other in (data // 2, 2 * data):
        if other and other <= problem.num_devices and problem.global_batch % other == 0:
            fixed = replace(problem.space, data=other)
            try:
                yield f"{other} replicas in place of {data}", f"--data {other}", replace(problem, space=fixed)
            except UsageError:  # other fixed choices do not go with it
                continue
