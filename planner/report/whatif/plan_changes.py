"""A plan as it is under some changes: the same cut, places and orders, priced and simulated again.

With a profile every price is made anew, as ``plan`` does. Without one, what the file itself can answer: messages from
their bytes, sums of gradients where their bytes are in the file, speeds, memory; the answer tells what is left out.
Another schedule, or another number of micro-batches (each as large as before: the batch changes), makes orders anew by
name. Leaves out other cuts, places and strategies: those are the planner's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.errors import InvalidInput, PenstockError, UsageError
from costmodel.machines.changed_cluster import BANDWIDTH, capped_by_pairs, ranks_of, with_link, with_memory, with_speed
from costmodel.machines.cluster import CLUSTER, Cluster
from costmodel.model.profile import Profile
from costmodel.model.whole_model import SplitRatios
from planner.candidate.from_plan_file import priced_again
from planner.candidate.order import in_split_form, ordered
from planner.plan import Batch, Plan
from planner.plan.lockstep import spread
from planner.plan.replay import plan_schedule
from planner.question.reask import as_it_is
from planner.report.whatif.from_file import file_prices
from planner.report.whatif.settings import MICROBATCHES, SCHEDULE, Change
from planner.report.why.what_if import TIMES
from simulator.actions import Action, Kind
from simulator.engine import Structure
from simulator.lowering import close_step
from simulator.schedules import SCHEDULES
from simulator.transformations import with_recompute


def changed_cluster(cluster: Cluster, changes: Sequence[Change]) -> Cluster:
    """Return a cluster under the changes of links, devices and ranks.

    Raises
    ------
    UsageError
        For a link, device or rank that it does not have, or a value that no cluster may have.
    """
    for change in changes:
        try:
            cluster = _with(cluster, change)
        except InvalidInput as error:
            raise UsageError(f"{change}: {error}") from None
    return cluster


def _with(cluster: Cluster, change: Change) -> Cluster:
    if change.kind == "link":
        return with_link(cluster, change.name, change.part, change.of)
    if change.kind == "device" and change.part == "memory":
        return with_memory(cluster, change.name, change.of)
    if change.kind == "device":
        return with_speed(cluster, ranks_of(cluster, change.name), change.of)
    return with_speed(cluster, [change.index], change.of) if change.kind == "rank" else cluster


@dataclass(frozen=True, slots=True)
class Changed:
    """A plan under changes: its costs and orders are new, its prediction is still the old one."""

    plan: Plan
    left_out: tuple[str, ...] = ()


class PlanChanges:
    """A plan, and what it is under changes; prices are kept by cluster and batch."""

    def __init__(self, plan: Plan, profiles: Sequence[Profile] = ()) -> None:
        self.plan, self.profiles = plan, profiles
        self._priced: dict[str, Changed] = {}
        self._structure = structure_of(plan)
        self._actions = {action for order in self._structure.schedule.orders for action in order}

    def structure(self, plan: Plan) -> Structure:
        """Return what is fixed in simulating a plan; it is kept for the orders that the plan has as it is."""
        return self._structure if plan.orders is self.plan.orders else structure_of(plan)

    def step_ns(self, plan: Plan) -> int:
        """Return the simulated step time of the plan under some changes."""
        return self.structure(plan).times(plan.costs(), plan.speeds).step_time_ns

    def under(self, changes: Sequence[Change]) -> Changed:
        """Return the plan under some changes, one after the other.

        Raises
        ------
        UsageError
            For what the plan does not have, or what cannot be known without a profile.
        """
        for change in changes:
            self._check(change)
        named = {change.kind: change for change in changes if change.kind in (MICROBATCHES, SCHEDULE)}
        count = int(named[MICROBATCHES].number) if MICROBATCHES in named else self.plan.batch.num_microbatches
        cluster = changed_cluster(self.plan.cluster, changes)
        found = self._prices(cluster, count)
        plan = found.plan
        faster = [change.name for change in changes if (change.kind, change.part) == ("link", BANDWIDTH)]
        found = replace(
            found, left_out=(*found.left_out, *(n for name in faster for n in capped_by_pairs(cluster, name)))
        )
        for change in changes:
            plan = _with_stage_time(plan, change) if change.kind == "stage" else plan
        name = named[SCHEDULE].text if SCHEDULE in named else self.plan.schedule
        if MICROBATCHES in named and SCHEDULE not in named:
            self._check_name()
        return replace(found, plan=self._ordered(plan, name) if named else self._in_own_orders(plan))

    def _check(self, change: Change) -> None:
        if change.kind == "stage" and change.index >= len(self.plan.stages):
            raise UsageError(f"{change}: the plan's stages are 0 to {len(self.plan.stages) - 1}")
        if change.kind == "rank" and change.index >= len(self.plan.orders):
            raise UsageError(f"{change}: the plan's ranks are 0 to {len(self.plan.orders) - 1}")
        if change.kind == SCHEDULE and change.text not in SCHEDULES:
            raise UsageError(f"{change}: no schedule is called so; there are {', '.join(SCHEDULES)}")

    def _prices(self, cluster: Cluster, count: int) -> Changed:
        """Return the plan with the prices of F and whole B on a cluster."""
        key = json.dumps([count, CLUSTER.write(cluster)])
        if key not in self._priced:
            size = self.plan.batch.microbatch_size
            if self.profiles:
                problem = as_it_is(self.plan, self.profiles, cluster, count * size)
                self._priced[key] = Changed(priced_again(self.plan, problem))
            else:
                plan, left_out = file_prices(self.plan, cluster, count)
                self._priced[key] = Changed(replace(plan, batch=Batch(count * size, size, count)), left_out)
        return self._priced[key]

    @cached_property
    def _ratios(self) -> SplitRatios:
        """What split backwards take longer than the prices say."""
        if self.profiles:
            batch = self.plan.batch
            problem = as_it_is(self.plan, self.profiles, self.plan.cluster, batch.global_size)
            return problem.measured(batch.microbatch_size).split_ratios
        said = self.plan.provenance.get("split_ratios")
        known = isinstance(said, dict) and set(said) == {"forward", "backward"} and not self._split
        return SplitRatios(**said) if known else SplitRatios()  # type: ignore[arg-type]

    @cached_property
    def _split(self) -> set[int]:
        """Stages whose backward is split."""
        return {action.stage for action in self._actions if action.kind is Kind.I}

    def _in_own_orders(self, plan: Plan) -> Plan:
        costs = in_split_form(plan.costs(), self._split, self._ratios)
        return _with_costs(plan, costs.stages)

    def _ordered(self, plan: Plan, name: str) -> Plan:
        """Return a plan in the orders that a schedule makes."""
        if self._split and not SCHEDULES[name].split and not self.profiles:
            raise UsageError(
                f"schedule={name} runs whole backwards, and the plan file has the times of split ones; give --profile"
            )
        in_flight = plan.in_flight if name == plan.schedule else ()
        schedule, costs = ordered(name, plan.costs(), plan.batch.num_microbatches, self._ratios, in_flight)
        closing = {(action.kind, action.stage) for action in self._actions}
        again = {stage for kind, stage in closing if kind is Kind.R}
        schedule = with_recompute(schedule, again) if again else schedule
        reduces = [(Kind.REDUCE, stage) in closing for stage in range(len(plan.stages))]
        closed = close_step(schedule, reduces, any(kind is Kind.OPT for kind, _ in closing))
        orders = spread(plan.blocks, [_texts(order) for order in closed.orders])
        return replace(_with_costs(plan, costs.stages), schedule=name, orders=orders)

    def _check_name(self) -> None:
        """Refuse another number of micro-batches for orders that the schedule's name does not make."""
        plan, name = self._prices(self.plan.cluster, self.plan.batch.num_microbatches).plan, self.plan.schedule
        try:
            made_ns = self.step_ns(self._ordered(plan, name)) if name in SCHEDULES else -1
        except PenstockError:
            made_ns = -1
        if made_ns != self.step_ns(self._in_own_orders(plan)):
            raise UsageError(
                f"the plan's orders are not those that the schedule {name!r} makes for it, so that there are none for "
                "another number of micro-batches; give schedule=NAME, too, or plan anew"
            )


def structure_of(plan: Plan) -> Structure:
    """Return what is fixed in simulating a plan's orders."""
    return Structure(plan_schedule(plan))


def _texts(order: Sequence[Action]) -> tuple[str, ...]:
    return tuple(map(str, order))


def _with_costs(plan: Plan, stages: Sequence[object]) -> Plan:
    pairs = zip(plan.stages, stages, strict=True)
    return replace(plan, stages=tuple(replace(stage, cost=cost) for stage, cost in pairs))  # type: ignore[arg-type]


def _with_stage_time(plan: Plan, change: Change) -> Plan:
    """Return a plan with the times F, I, W and R of one stage multiplied by a factor."""

    def scaled(amount: int | tuple[int, ...]) -> int | tuple[int, ...]:
        if isinstance(amount, int):
            return round(change.of(amount))  # type: ignore[arg-type]
        return tuple(round(change.of(value)) for value in amount)  # type: ignore[arg-type]

    def part(index: int, cost: object) -> object:
        times = {name: scaled(getattr(cost, name)) for name in TIMES}
        return replace(cost, **times) if index == change.index else cost  # type: ignore[type-var]

    return _with_costs(plan, [part(i, stage.cost) for i, stage in enumerate(plan.stages)])
