"""Operators to stages: each once, no cycle, every tensor and gradient on edges that lead where it is needed.

Without the operator graph only repeats and the number of operators can be seen. Leaves out prices.
"""

from collections.abc import Iterator, Mapping

from costmodel.model.graph import OperatorGraph, Tensor
from planner.checker.problem import PlanProblem
from planner.plan import REPLICATE, Plan, PlanEdge


def operator_problems(plan: Plan, graph: OperatorGraph | None) -> Iterator[PlanProblem]:
    """Yield operators that are in no stage, in two, or that the model does not have."""
    stage_of: dict[str, int] = {}
    for index, stage in enumerate(plan.stages):
        if not stage.operators:
            yield PlanProblem("operator", f"stage {index}", "no operators; every stage needs one")
        for name in stage.operators:
            if name in stage_of:
                yield PlanProblem(
                    "operator", f"stage {index}", f"operator {name!r} is in stage {stage_of[name]} already"
                )
            stage_of[name] = index
            if graph and name not in graph.index:
                yield PlanProblem("operator", f"stage {index}", f"operator {name!r} is not one of the model's")
    for name in graph.index if graph else ():
        if name not in stage_of:
            yield PlanProblem("operator", "stages", f"operator {name!r} of the model is in no stage")
    known = len(graph.operators) if graph else len(stage_of)
    if plan.num_operators != known:
        where = "model has" if graph else "stages hold"
        yield PlanProblem("operator", "model", f"{plan.num_operators} operators are announced, the {where} {known}")


def configuration_problems(plan: Plan) -> Iterator[PlanProblem]:
    """Yield stages whose degrees of parallelism are not those of their ranks."""
    for index, stage in enumerate(plan.stages):
        degree = stage.config.data * stage.config.tensor * stage.config.context
        if degree != len(stage.ranks):
            yield PlanProblem(
                "rank",
                f"stage {index}",
                f"data x tensor x context is {degree}; the stage has the ranks {list(stage.ranks)}",
            )
        parts = stage.config.expert * stage.config.expert_tensor
        if degree % parts:
            yield PlanProblem(
                "rank",
                f"stage {index}",
                f"expert x expert_tensor is {parts}, which does not divide data x tensor x context = {degree}",
            )


def border_problems(plan: Plan) -> Iterator[PlanProblem]:
    """Yield edges whose tensors are recorded as divided among the lanes of a stage that has one lane."""
    for edge in plan.edges:
        config = plan.stages[edge.source].config
        if edge.border != REPLICATE and config.context * config.tensor == 1:
            yield PlanProblem(
                "edge",
                f"edge {edge.source} -> {edge.target}",
                f"the border is {edge.border}, and a replica of stage {edge.source} has one lane; {REPLICATE} is right",
            )


def flow_problems(plan: Plan, graph: OperatorGraph) -> Iterator[PlanProblem]:
    """Yield what is wrong between stages; every operator must be in exactly one."""
    stage_of = {name: index for index, stage in enumerate(plan.stages) for name in stage.operators}
    yield from _cycle(graph, stage_of, len(plan.stages))
    yield from _apart_in_place(graph, stage_of)
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    for edge in plan.edges:
        yield from _edge_problems(plan, edge, tensors)
    for tensor in graph.tensors:
        yield from _path_problems(plan, tensor, stage_of)
    yield from _backward_problems(plan, graph)
    yield from _shared_problems(plan, graph)


def _shared_problems(plan: Plan, graph: OperatorGraph) -> Iterator[PlanProblem]:
    """Yield stages that name other parameters as shared than they have in common; plans before that name none."""
    held = [
        {name for operator in stage.operators for name in graph.operators[graph.index[operator]].parameters}
        for stage in plan.stages
    ]
    for index, stage in enumerate(plan.stages) if any(stage.shared for stage in plan.stages) else ():
        others = set().union(*(names for other, names in enumerate(held) if other != index))
        expected = {name for name in held[index] & others if graph.parameter_index[name].trainable}
        if set(stage.shared) != expected:
            yield PlanProblem(
                "model",
                f"stage {index}",
                f"it shares {sorted(stage.shared)} with other stages by the file, and {sorted(expected)} by the model",
            )


def _cycle(graph: OperatorGraph, stage_of: Mapping[str, int], num_stages: int) -> Iterator[PlanProblem]:
    """Yield the stages that no order of stages satisfies (a plain Kahn pass over the quotient)."""
    reads: dict[int, set[int]] = {stage: set() for stage in range(num_stages)}
    for tensor in graph.tensors:
        for consumer in tensor.consumers:
            if stage_of[consumer] != stage_of[tensor.producer]:
                reads[stage_of[consumer]].add(stage_of[tensor.producer])
    left = set(reads)
    while free := {stage for stage in left if not reads[stage] & left}:
        left -= free
    if left:
        yield PlanProblem(
            "cycle",
            f"stages {sorted(left)}",
            "each reads an output of another of them; the graph of stages must have no cycle",
        )


def _apart_in_place(graph: OperatorGraph, stage_of: Mapping[str, int]) -> Iterator[PlanProblem]:
    for i, operator in enumerate(graph.operators):
        sources = [graph.operators[p].name for p in graph.predecessors[i]]
        if operator.in_place and sources and all(stage_of[s] != stage_of[operator.name] for s in sources):
            yield PlanProblem(
                "operator",
                f"stage {stage_of[operator.name]}",
                f"operator {operator.name!r} changes the output of {' or '.join(map(repr, sources))} in place and "
                f"must be in its stage {stage_of[sources[0]]}",
            )


def _edge_problems(plan: Plan, edge: PlanEdge, tensors: Mapping[str, Tensor]) -> Iterator[PlanProblem]:
    place = f"edge {edge.source} -> {edge.target}"
    unknown = [name for name in edge.tensors if name not in tensors]
    for name in unknown:
        yield PlanProblem("edge", place, f"tensor {name!r} is not one of the model's")
    if len(set(edge.tensors)) < len(edge.tensors) or not edge.tensors:
        yield PlanProblem("edge", place, f"the tensors are {list(edge.tensors)}; each that crosses is named once")
    if unknown:
        return
    needed = any(tensors[name].gradient for name in edge.tensors)
    if edge.gradient != needed:
        yield PlanProblem(
            "edge", place, f"gradient is {str(edge.gradient).lower()}, its tensors say {str(needed).lower()}"
        )
    if edge.gradient and not (plan.stages[edge.source].cost.backward and plan.stages[edge.target].cost.backward):
        yield PlanProblem("edge", place, "a gradient flows back over it, and one of its stages has no backward")


def _path_problems(plan: Plan, tensor: Tensor, stage_of: Mapping[str, int]) -> Iterator[PlanProblem]:
    """Follow a tensor from its producer's stage along the edges that list it."""
    home = stage_of[tensor.producer]
    carriers = [edge for edge in plan.edges if tensor.name in edge.tensors]
    arrived = {home}
    while reached := {e.target for e in carriers if e.source in arrived} - arrived:
        arrived |= reached
    readers = {stage_of[consumer] for consumer in tensor.consumers}
    for stage in sorted(readers - arrived):
        yield PlanProblem(
            "edge", f"stage {stage}", f"reads the tensor {tensor.name!r} of stage {home}, and no edges bring it there"
        )
    for edge in carriers:
        place = f"edge {edge.source} -> {edge.target}"
        if edge.source not in arrived:
            yield PlanProblem(
                "edge", place, f"sends the tensor {tensor.name!r}, which stage {edge.source} does not have"
            )
        if edge.target == home or sum(e.target == edge.target for e in carriers) > 1:
            yield PlanProblem("edge", place, f"the tensor {tensor.name!r} reaches stage {edge.target} more than once")
        if edge.target not in readers and all(e.source != edge.target for e in carriers):
            yield PlanProblem(
                "edge", place, f"stage {edge.target} neither reads the tensor {tensor.name!r} nor passes it on"
            )


def _backward_problems(plan: Plan, graph: OperatorGraph) -> Iterator[PlanProblem]:
    for index, stage in enumerate(plan.stages):
        trains = any(graph.operators[graph.index[name]].trainable for name in stage.operators)
        passes = any(e.gradient and index in (e.source, e.target) for e in plan.edges)
        if trains and not stage.cost.backward:
            yield PlanProblem("edge", f"stage {index}", "has operators with a gradient, and its cost says no backward")
        if stage.cost.backward and not trains and not passes:
            yield PlanProblem("edge", f"stage {index}", "has a backward, and none of its operators has a gradient")
