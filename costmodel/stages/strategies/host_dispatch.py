"""What the host takes to dispatch a stage's actions: no action is shorter than that.

Every operator and every collective inside a stage costs its trainer a known number of calls; a backward costs them
again by a factor, and so does a forward that runs again. A grouped product of experts may be one call, or as many
products as a rank holds experts (Transformer Engine's GroupedLinear casts and multiplies one expert after the other:
pytorch/module/grouped_linear.py, common/gemm/cublaslt_gemm.cu). Leaves out how far a host may be ahead from one action
to the next: messages between stages hold it up.
"""

from collections.abc import Iterable, Mapping, Sequence

from costmodel.model.graph import Operator, OperatorGraph
from costmodel.model.launches import paced_ns
from costmodel.stages.strategies.division import Degrees, ceil
from costmodel.stages.strategies.shared_sums import Item, SharedSums
from costmodel.stages.strategies.training import TrainingJob

KINDS = ("matmul", "attention", "norm", "embedding", "loss")
"""Kinds of work whose calls are counted apart; any other is elementwise."""


class HostDispatch:
    """Host times of the operators of one configuration.

    Parameters
    ----------
    graph : OperatorGraph
    training : TrainingJob
    degrees : Degrees
    forward, backward : iterable of Item
        Collectives in F and in I, of which those that take no time are none.
    """

    def __init__(
        self,
        graph: OperatorGraph,
        training: TrainingJob,
        degrees: Degrees,
        forward: Iterable[Item],
        backward: Iterable[Item],
    ) -> None:
        of_kind = training.host_ns
        own = [calls_of(operator, of_kind, degrees.expert) for operator in graph.operators]
        sent = of_kind.get("collective", 0)
        self._count, self._own, self._coupled = len(own), own, training.coupled
        self._sent = [(i, key, round(sent)) for i, key, ns in forward if ns]
        self._forward = SharedSums(self._sent, self._count, [round(ns) for ns in own])
        self._backward = SharedSums(
            [(i, key, round(sent)) for i, key, ns in backward if ns],
            self._count,
            [round(ns * training.host_backward * o.trainable) for ns, o in zip(own, graph.operators, strict=True)],
        )

    def again(self, runs_again: Sequence[bool]) -> SharedSums:
        """Return what the forwards of some operators take once more."""
        rows = [round(ns) * again for ns, again in zip(self._own, runs_again, strict=True)]
        return SharedSums([item for item in self._sent if runs_again[item[0]]], self._count, rows)

    def dispatch_ns(self, operators: Sequence[int], again: SharedSums) -> tuple[int, int]:
        """Return what the host takes by itself of a forward, and of a whole backward with its recompute."""
        return self._forward.over(operators), self._backward.over(operators) + again.over(operators)

    def at_first(self) -> tuple[list[int], list[int]]:
        """Return what the host takes of each operator's forward and backward; shared calls count with the first."""
        return self._forward.at_first(), self._backward.at_first()

    def forward_ns(self, operators: Sequence[int], device_ns: int) -> int:
        """Return the time of a forward, given what it takes on the device."""
        return paced_ns(self._forward.over(operators), device_ns, self._coupled)

    def backward_ns(self, operators: Sequence[int], device_ns: int, again: SharedSums) -> int:
        """Return the time of a whole backward with its recompute, given what it takes on the device."""
        return paced_ns(self._backward.over(operators) + again.over(operators), device_ns, self._coupled)


def calls_of(operator: Operator, calls: Mapping[str, float], expert: int = 1) -> float:
    """Return what `calls` has of the forward of an operator, experts divided among `expert` ranks."""
    work = operator.work
    if work and not work.passes:  # a view, or a part of another operator's kernel
        return 0
    if work and work.experts and work.kind == "matmul" and "expert" in calls:
        return calls["expert"] * ceil(work.experts, expert)
    return calls.get(work.kind if work and work.kind in KINDS else "elementwise", 0)
