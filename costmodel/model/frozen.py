"""A graph in which some parameters train alone: adapters of a frozen model (LoRA), or nothing (inference)."""

from collections.abc import Collection
from dataclasses import replace

from costmodel.model.graph import Operator, OperatorGraph


def train_alone(graph: OperatorGraph, names: Collection[str]) -> OperatorGraph:
    """Return a graph whose parameters of these names train, and no others.

    A gradient flows into what follows a trained parameter; what precedes all of them has no backward and keeps
    nothing, and a frozen matrix product needs its input for nothing.
    """
    reached: set[int] = set()
    for position, operator in enumerate(graph.operators):
        if not (reached.isdisjoint(graph.predecessors[position]) and set(operator.parameters).isdisjoint(names)):
            reached.add(position)
    index = graph.index
    return replace(
        graph,
        operators=tuple(
            replace(
                operator,
                trainable=i in reached,
                saved=operator.saved if i in reached and _keeps(operator, names) else (),
            )
            for i, operator in enumerate(graph.operators)
        ),
        tensors=tuple(
            each if (gets := index[each.producer] in reached) == each.gradient else replace(each, gradient=gets)
            for each in graph.tensors
        ),
        parameters=tuple(
            each if (trains := each.name in names) == each.trainable else replace(each, trainable=trains)
            for each in graph.parameters
        ),
    )


def _keeps(operator: Operator, names: Collection[str]) -> bool:
    is_product = operator.work is not None and operator.work.kind == "matmul"
    return not (is_product and operator.parameters and set(operator.parameters).isdisjoint(names))
