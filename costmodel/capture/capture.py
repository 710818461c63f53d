"""The captured model: its program, the operators it falls into and the tensors that flow between them.

One capture serves the profiler and the executor, so that names and fingerprint agree. Leaves out costs
(`timing`, `memory`) and running a piece of it (`parts`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TrainingModel, take
from costmodel.capture.calls import ModuleCall
from costmodel.capture.export import FlatProgram, export_program
from costmodel.capture.lengths import ValueShapes, check_lengths, drop_whole_slices, named_as_planned
from costmodel.capture.mixed_rows import refuse_mixed_rows
from costmodel.capture.models import explain
from costmodel.capture.passes import (
    drop_checks,
    group_nodes,
    kind_of,
    module_path,
    read_sizes_from_inputs,
    replicable,
)
from costmodel.capture.shapes import Reach, TensorInfo, describe_values, fetch
from costmodel.errors import DoesNotMatch, InvalidInput, OtherAtEachSize
from costmodel.model.graph import LOSS, Operator, OperatorGraph, Parameter, SavedStorage, Tensor


@dataclass(frozen=True, slots=True)
class CapturedOperator:
    """One operator: nodes of the program that always run together, in program order."""

    name: str
    kind: str
    module: str
    nodes: tuple[fx.Node, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CapturedTensor:
    """A tensor that leaves its operator: name of its node, producer and consumers by operator name."""

    name: str
    producer: str
    consumers: tuple[str, ...]


@dataclass(frozen=True)
class Capture:
    """A model's program with its operators.

    Attributes
    ----------
    model : TrainingModel
    program : FlatProgram
        Flat: leaves of (args, kwargs) in, leaves of the output out.
    groups : mapping
        Operators by name in a topological order, the loss not among them.
    flows : mapping
        Tensors between operators (the loss included as a consumer) by name.
    replicated : frozenset of torch.fx.Node
        Nodes that each consumer computes for itself.
    inputs : tuple of str
        Names of the raw inputs, one a leaf of (args, kwargs).
    outputs : tuple
        Leaves of the model's output: nodes, or constants.
    calls : tuple of ModuleCall
        Calls of the model's modules that a part could make, outer ones first.
    """

    model: TrainingModel
    program: FlatProgram
    groups: Mapping[str, CapturedOperator]
    flows: Mapping[str, CapturedTensor]
    replicated: frozenset[fx.Node]
    inputs: tuple[str, ...]
    outputs: tuple[Any, ...]
    calls: tuple[ModuleCall, ...] = ()

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of all operators in a topological order, the loss last."""
        return (*self.groups, LOSS)

    @property
    def static_batch(self) -> int | None:
        """The only micro-batch size at which the program runs; None when any will do."""
        return self.program.static_batch

    def bind(self, model: TrainingModel) -> dict[str, Any]:
        """Return a model's inputs (one micro-batch of them, say) by the raw inputs' names.

        Raises
        ------
        DoesNotMatch
            When they are not those of the captured model, or its fixed batch is another one.
        """
        leaves = pytree.tree_leaves((model.args, dict(model.kwargs)))
        if len(leaves) != len(self.inputs):
            raise DoesNotMatch(f"{len(leaves)} inputs were given, the captured model has {len(self.inputs)}")
        if self.static_batch is not None and model.batch != self.static_batch:
            raise DoesNotMatch(
                f"the model fixes its batch when it is captured ({self.static_batch}); it cannot run with {model.batch}"
            )
        return dict(zip(self.inputs, leaves, strict=True))

    def parameter(self, name: str) -> torch.nn.Parameter:
        """Return the model's own parameter of that (first qualified) name."""
        return self._parameters[name]

    @cached_property
    def value_shapes(self) -> ValueShapes:
        """Shapes of its values at other numbers of samples, and other lengths where these are free."""
        return ValueShapes(self.program.module.graph, self.program.guards)

    @cached_property
    def name_of(self) -> Mapping[int, str]:
        """First qualified name of each parameter, by the object's id."""
        return {id(parameter): name for name, parameter in self._parameters.items()}

    @cached_property
    def _parameters(self) -> Mapping[str, torch.nn.Parameter]:
        return dict(self.model.module.named_parameters())

    def at(self, microbatch_size: int) -> "Capture":
        """Return a capture that runs at that size: this one, unless its batch is fixed to another.

        Raises
        ------
        OtherAtEachSize
            When the model falls into other operators at that size.
        """
        if self.static_batch in (None, microbatch_size):
            return self
        other = capture(self.model, microbatch_size, bool(self.program.plan_only))
        if other.operators != self.operators or other.flows != self.flows:
            raise OtherAtEachSize(
                f"{self.model.name}: the model computes something else at micro-batch size {microbatch_size} than at "
                f"{self.static_batch}; give one size alone (--microbatch-sizes {microbatch_size})"
            )
        return other

    def describe(self, microbatch_size: int) -> Mapping[str, tuple[TensorInfo, ...]]:
        """Return every node's tensors (by node name) at a micro-batch size, without computing them."""
        return self.describe_with_reach(microbatch_size)[0]

    def describe_with_reach(self, microbatch_size: int) -> tuple[Mapping[str, tuple[TensorInfo, ...]], Reach]:
        """Return every node's tensors (by node name) at a micro-batch size, and what gradients reach.

        Raises
        ------
        InvalidInput
            When the model cannot run at that size (BatchNorm over a single value, say).
        """
        leaves = tuple(self.bind(take(self.model, microbatch_size)).values())
        try:
            with self.model.casting():
                return describe_values(self.program.module, leaves, bool(self.program.plan_only), self.model.device)
        except Exception as error:
            raise InvalidInput(
                f"{self.model.name}: the model cannot run with a micro-batch of {microbatch_size}: {explain(error)}; "
                "choose other micro-batch sizes"
            ) from None


def capture(model: TrainingModel, microbatch_size: int | None = None, plan_only: bool = False) -> Capture:
    """Capture a training model at operator granularity.

    Parameters
    ----------
    model : TrainingModel
    microbatch_size : int, optional
        Used only when the model refuses a dynamic batch: the size it is then fixed to.
    plan_only : bool
        Whether a trace of one eager run will do where torch.export refuses: to plan with, not to run.

    Raises
    ------
    InvalidInput
        When torch.export refuses the model.
    """
    check_lengths(model)
    fixed = capture(replace(model, lengths={}), microbatch_size, plan_only) if model.lengths else None
    program = export_program(model, microbatch_size, plan_only)
    module = program.module
    graph = module.graph
    if fixed is not None:
        drop_whole_slices(model, graph)
    drop_checks(graph)
    refuse_mixed_rows(model, graph, program.static_batch)
    read_sizes_from_inputs(graph)
    calls = program.notes.take(graph) if program.notes else ()
    drop_checks(graph)  # what marks alone have read
    for node in graph.nodes:
        if node.name == LOSS:
            node._rename("loss_value")
    module.recompile()
    sample = take(model, program.static_batch or 2)
    leaves = tuple(pytree.tree_leaves((sample.args, dict(sample.kwargs))))
    infos, _ = describe_values(module, leaves, bool(program.plan_only))
    names = _parameter_names(model, module)
    replicated = replicable(graph, infos, frozenset(names))
    grouped = group_nodes(graph, infos, replicated)
    if fixed is not None:
        named_as_planned(model, graph, grouped, [group.nodes for group in fixed.groups.values()])
    groups = {}
    for nodes in grouped:
        group = _group(nodes, names)
        groups[group.name] = group
    outputs = graph.output_node().args[0]
    assert isinstance(outputs, tuple)  # noqa: S101 - made flat by export_program
    inputs = tuple(node.name for node in graph.nodes if node.op == "placeholder")
    return Capture(model, program, groups, _flows(groups, outputs), replicated, inputs, outputs, calls)


def operator_graph(
    capture: Capture,
    microbatch_sizes: tuple[int, ...],
    flop: Mapping[str, int] | None = None,
    saved: Mapping[str, tuple[SavedStorage, ...]] | None = None,
    storages: Mapping[str, int] | None = None,
) -> OperatorGraph:
    """Return the operator graph at these micro-batch sizes.

    `flop` and `saved` are by operator, `storages` by tensor; what is not given stays empty.
    """
    infos = [capture.at(size).describe(size) for size in microbatch_sizes]
    flop, saved, storages = flop or {}, saved or {}, storages or {}
    parameters = dict(capture.model.module.named_parameters())
    outgoing: dict[str, list[str]] = {name: [] for name in capture.operators}
    for flow in capture.flows.values():
        outgoing[flow.producer].append(flow.name)
    operators = [
        Operator(
            name=group.name,
            kind=group.kind,
            module=group.module,
            flop=flop.get(group.name, 0),
            parameters=group.parameters,
            parameter_bytes=sum(_bytes(parameters[p]) for p in group.parameters),
            output_bytes=tuple(sum(i[t][0].size_bytes for t in outgoing[group.name]) for i in infos),
            saved=saved.get(group.name, ()),
            trainable=any(info.requires_grad for node in group.nodes for info in infos[0][node.name]),
        )
        for group in capture.groups.values()
    ]
    operators.append(Operator(LOSS, LOSS, output_bytes=(0,) * len(infos), saved=saved.get(LOSS, ())))
    tensors = [
        Tensor(
            flow.name,
            flow.producer,
            flow.consumers,
            tuple(i[flow.name][0].size_bytes for i in infos),
            infos[0][flow.name][0].requires_grad,
            storages.get(flow.name, -1),
        )
        for flow in capture.flows.values()
    ]
    read = {name for group in capture.groups.values() for name in group.parameters}
    listed = [Parameter(n, tuple(p.shape), _bytes(p), p.requires_grad) for n, p in parameters.items() if n in read]
    return OperatorGraph(capture.model.name, tuple(operators), tuple(tensors), tuple(listed))


def _bytes(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()


def _parameter_names(model: TrainingModel, module: fx.GraphModule) -> dict[str, str]:
    """Return get_attr node name -> first qualified name, for those that are parameters of the model."""
    first = {id(parameter): name for name, parameter in model.module.named_parameters()}
    found = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            name = first.get(id(fetch(module, node.target)))
            if name is not None:
                found[node.name] = name
    return found


def _group(nodes: list[fx.Node], names: Mapping[str, str]) -> CapturedOperator:
    reads = {names[source.name]: None for node in nodes for source in node.all_input_nodes if source.name in names}
    head = next((node for node in nodes if node.users), nodes[0])
    return CapturedOperator(head.name, kind_of(nodes), module_path(head), tuple(nodes), tuple(reads))


def _flows(groups: Mapping[str, CapturedOperator], outputs: tuple[Any, ...]) -> dict[str, CapturedTensor]:
    owner = {node: group.name for group in groups.values() for node in group.nodes}
    leaves = {leaf for leaf in outputs if isinstance(leaf, fx.Node)}
    flows = {}
    for group in groups.values():
        for node in group.nodes:
            readers = _readers(node, owner)
            consumers = [name for name in groups if name in readers and name != group.name]
            if node in leaves:
                consumers.append(LOSS)
            if consumers:
                flows[node.name] = CapturedTensor(node.name, group.name, tuple(consumers))
    return flows


def _readers(node: fx.Node, owner: Mapping[fx.Node, str]) -> set[str]:
    return {owner[user] for user in node.users if user in owner}
