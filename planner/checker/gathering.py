"""What ranks of a divided stage do together, derived anew: its units, what they gather and sum, and the modules it has.

Replicas under ZeRO-2 and 3 gather and sum unit by unit (Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2), each padded
to equal parts along the first dimension; lanes sum what their row layers make, and gradients of what their column
layers read. Leaves out the bytes of lanes' sums, those of tensors at the plan's micro-batch size, and times.
"""

from collections.abc import Iterator
from math import prod

from costmodel.model.graph import OperatorGraph
from planner.checker.problem import PlanProblem
from planner.plan import ALL_GATHER, ALL_REDUCE, MICROBATCH, REDUCE_SCATTER, Plan, PlanStage

_WITHIN = ("inner", "column")
"""Operators whose outputs are a lane's own part: their gradients are summed nowhere."""


def gathering_problems(plan: Plan, graph: OperatorGraph | None) -> Iterator[PlanProblem]:
    """Yield stages whose units, collectives or modules are not those of their operators and configuration."""
    named = any(stage.modules for stage in plan.stages)
    counted = any(stage.collectives for stage in plan.stages)  # plans that are older, or made for others, name none
    for index, stage in enumerate(plan.stages):
        place = f"stage {index}"
        for message in _unit_problems(stage):
            yield PlanProblem("model", place, message)
        if graph is None:
            continue
        parts = tuple(dict.fromkeys(p for p in (graph.parts[graph.index[name]] for name in stage.operators) if p))
        if named and stage.modules != parts:
            yield PlanProblem("model", place, f"its modules are {list(stage.modules)}; by the model {list(parts)}")
        homes = _homes(stage, graph)
        unknown = next((unit for unit in stage.units if unit not in homes), None)
        if unknown is not None:
            allowed = ", ".join(sorted(filter(None, homes))) or "none"
            text = f"{unknown!r} is no block that it holds whole with all its parameters; allowed: {allowed}"
            yield PlanProblem("model", place, text)
        elif counted:
            yield from _collective_problems(plan, stage, graph, homes, place)


def _unit_problems(stage: PlanStage) -> Iterator[str]:
    """Yield what is wrong with a stage's units whatever the model is."""
    if stage.units and not stage.config.gathers:
        yield f"it has the units {list(stage.units)}, and ZeRO-{stage.config.zero} gathers nothing"
    for place, unit in enumerate(stage.units):
        for other in stage.units[place + 1 :]:
            if unit == other:
                yield f"the unit {unit!r} occurs twice"
            elif f"{other}.".startswith(f"{unit}.") or f"{unit}.".startswith(f"{other}."):
                yield f"the unit {other!r} and the unit {unit!r} lie in each other; a parameter is in one unit"


def _homes(stage: PlanStage, graph: OperatorGraph) -> dict[str, list[str]]:
    """Return a stage's parameters by the block that could gather them by itself; others are under ``""``."""
    inside = set(stage.operators)
    elsewhere = {
        block for operator, block in zip(graph.operators, graph.blocks, strict=True) if operator.name not in inside
    }
    readers: dict[str, set[str]] = {}
    for name in stage.operators:
        position = graph.index[name]
        for parameter in graph.operators[position].parameters:
            readers.setdefault(parameter, set()).add(graph.blocks[position])
    mixed = elsewhere.union(*(blocks for blocks in readers.values() if len(blocks) > 1))
    found: dict[str, list[str]] = {}
    for parameter, blocks in readers.items():
        home = next(iter(blocks)) if len(blocks) == 1 else ""
        if graph.parameter_index[parameter].shape:
            found.setdefault("" if home in mixed else home, []).append(parameter)
    return found


def _collective_problems(
    plan: Plan, stage: PlanStage, graph: OperatorGraph, homes: dict[str, list[str]], place: str
) -> Iterator[PlanProblem]:
    told = {each.kind: (each.count, each.size_bytes) for each in stage.collectives}
    actions = plan.batch.num_microbatches // stage.microbatch_multiple // stage.config.data
    backwards = actions if stage.cost.backward else 0
    forwards = actions * (2 if stage.cost.backward and stage.config.recompute == "full" else 1)
    expected = _of_units(stage, graph, homes, forwards, backwards)
    if stage.config.tensor > 1:  # bytes are those of lanes' parts
        told = {kind: (count, 0) for kind, (count, _) in told.items()}
        expected = {kind: (count, 0) for kind, (count, _) in expected.items()}
        among = expected.get(ALL_REDUCE, (0, 0))[0]
        known = any(operator.work for operator in graph.operators)
        # plans for other trainers, and hand-made ones for a function of the user's, name no sums of lanes
        if known and told.get(ALL_REDUCE, (among, 0))[0] != among:
            expected[ALL_REDUCE] = (among + _sums_of_lanes(stage, graph, forwards, backwards), 0)
        elif ALL_REDUCE in told:
            expected[ALL_REDUCE] = told[ALL_REDUCE]
    for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE):
        found, right = told.get(kind, (0, 0)), expected.get(kind, (0, 0))
        if found != right:
            yield PlanProblem(
                "model", place, f"{kind}: {found[0]} with {found[1]} bytes a step; {right[0]} with {right[1]} is right"
            )


def _of_units(
    stage: PlanStage, graph: OperatorGraph, homes: dict[str, list[str]], forwards: int, backwards: int
) -> dict[str, tuple[int, int]]:
    """Return number and bytes of what units gather and sum in a step."""
    if not stage.config.gathers:
        return {}
    trains = {
        p for name in stage.operators if (o := graph.operators[graph.index[name]]).trainable for p in o.parameters
    }
    rows: dict[str, list[str]] = {}
    for home, parameters in homes.items():
        rows.setdefault(home if home in stage.units else "", []).extend(parameters)
    copies = stage.config.shard_group or stage.config.data
    gathers = gathered = sums = summed = among = parts = 0
    for parameters in rows.values():
        own = [p for p in parameters if p in trains and graph.parameter_index[p].trainable]
        times = forwards + (backwards if own else 0) if stage.config.zero == 3 else 1
        again = (backwards if stage.reduce == MICROBATCH else min(backwards, 1)) if own else 0
        gathers, gathered = gathers + times, gathered + times * _padded(graph, parameters, copies)
        sums, summed = sums + again, summed + again * _padded(graph, own, copies)
        if stage.config.shard_group:  # the part of each rank, among groups
            among, parts = among + bool(again), parts + bool(again) * _padded(graph, own, copies) // copies
    return {ALL_GATHER: (gathers, gathered), REDUCE_SCATTER: (sums, summed), ALL_REDUCE: (among, parts)}


def _padded(graph: OperatorGraph, names: list[str], num_copies: int) -> int:
    """Return what parameters take that are padded to equal parts of their first dimension."""
    total = 0
    for name in names:
        parameter = graph.parameter_index[name]
        each = parameter.size_bytes // max(1, prod(parameter.shape)) * prod(parameter.shape[1:])
        total += each * -(-parameter.shape[0] // num_copies) * num_copies
    return total


def _sums_of_lanes(stage: PlanStage, graph: OperatorGraph, forwards: int, backwards: int) -> int:
    """Return how often lanes sum in a step."""
    inside = set(stage.operators)
    how = {operator.name: operator.work.split if operator.work else "" for operator in graph.operators}
    count = 0
    for tensor in graph.tensors:
        if tensor.producer in inside and how[tensor.producer] == "row":
            count += forwards
        if tensor.gradient and how[tensor.producer] not in _WITHIN:
            count += backwards * sum(how[name] == "column" for name in set(tensor.consumers) & inside)
    return count
