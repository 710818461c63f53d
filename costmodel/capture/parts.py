"""A runnable piece of a captured model: some of its operators, with the loss or without.

Values computed elsewhere and raw inputs come in by name, what leaves goes out by name; parameters stay
the model's own objects, so that gradients arrive where the user's optimizer looks. A part may call the user's own
modules (`module_calls`) where they lie in it whole; the rest of it, glue and modules that a cut goes through, are the
program's nodes. Leaves out who sends what to whom.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from costmodel.capture.calls import ModuleCall
from costmodel.capture.capture import Capture
from costmodel.capture.module_calls import MadeCall, Reading, entering_nodes, passed_on, whole_calls
from costmodel.capture.shapes import fetch
from costmodel.errors import DoesNotMatch
from costmodel.model.graph import LOSS

LOSS_WEIGHT = "loss_weight"
"""Key of a part's result under which the weight of a (sum, weight) loss is stored."""
RUN = "run"
"""Key of a node's `meta` under which the number of the run is stored with which it is computed again."""


@dataclass(frozen=True)
class Part:
    """Some operators of a model as one callable.

    Attributes
    ----------
    receives : tuple of str
        Tensors that other parts compute and this one reads.
    raw_inputs : tuple of str
        Raw inputs of the model that it reads.
    sends : tuple of str
        Tensors that it computes and that leave.
    parameters : tuple of str
        Parameters that it reads, by their first qualified names.
    has_loss : bool
    module : torch.fx.GraphModule
        Takes receives, then raw inputs, in order; returns the sends, then the loss's tensors.
    calls : tuple of ModuleCall
        Those of the user's modules that it makes.
    left : mapping of str to str
        Modules of which it holds something and that it does not call, with the reason.
    read : tuple of str
        Parameters that it reads outside such modules.
    root : torch.nn.Module, optional
        The view (`views`) whose call it is, for hooks of its own.
    """

    capture: Capture
    receives: tuple[str, ...]
    raw_inputs: tuple[str, ...]
    sends: tuple[str, ...]
    parameters: tuple[str, ...]
    has_loss: bool
    module: fx.GraphModule
    calls: tuple[ModuleCall, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    read: tuple[str, ...] = ()
    root: nn.Module | None = None

    def calls_module(self, path: str) -> bool:
        """Whether it calls a module, by itself or within another."""
        return any(not call.path or f"{path}.".startswith(f"{call.path}.") for call in self.calls)

    def __call__(self, values: Mapping[str, Any], targets: Any = None) -> dict[str, torch.Tensor]:
        """Compute the part for one micro-batch.

        Parameters
        ----------
        values : mapping
            All of `receives` and `raw_inputs` by name.
        targets
            The micro-batch's targets, where the part has the loss and the loss takes any.

        Returns
        -------
        dict
            The sends by name; with the loss also ``loss`` and, if it has one, ``loss_weight``.
        """
        with self.capture.model.casting():
            computed = self._run()(*(values[name] for name in (*self.receives, *self.raw_inputs)))
        result = dict(zip(self.sends, computed, strict=False))
        if self.has_loss:
            output = pytree.tree_unflatten(computed[len(self.sends) :], self.capture.program.out_spec)
            loss, weight = self.capture.model.evaluate(output, targets)
            result[LOSS] = loss
            if weight is not None:
                result[LOSS_WEIGHT] = torch.as_tensor(weight)
        return result

    def _run(self) -> nn.Module:
        """Return what computes the part."""
        if self.root is None:
            return self.module
        vars(self.root)["forward"] = self.module.forward  # past nn.Module's look at what is set
        return self.root


def extract(
    capture: Capture,
    operators: Iterable[str],
    sends: Iterable[str] = (),
    *,
    with_modules: bool = False,
    view: nn.Module | None = None,
    runs: Sequence[Collection[str]] = (),
) -> Part:
    """Cut a part out of a captured model.

    Parameters
    ----------
    operators : iterable of str
        Names of operators; ``loss`` among them adds the loss.
    sends : iterable of str
        Names of tensors that the part hands on.
    with_modules : bool
        Whether modules that lie in the part whole are called as themselves.
    view : torch.nn.Module, optional
        Whose modules and parameters are called and read in place of the model's own, by their names.
    runs : sequence of collections of str
        Operators that are computed again together, which no called module joins with others.

    Raises
    ------
    DoesNotMatch
        When the model has no such operator, the part does not compute a tensor that it should send, or a view lacks a
        module that the part calls.
    """
    chosen, sends = set(operators), tuple(sends)
    for name in chosen - set(capture.operators):
        raise DoesNotMatch(f"the model has no operator {name!r}; the plan was made for another model")
    for name in sends:
        if name not in capture.flows or capture.flows[name].producer not in chosen:
            raise DoesNotMatch(f"the tensor {name!r} is not computed by these operators; the plan was made otherwise")
    inside = {node for name in chosen - {LOSS} for node in capture.groups[name].nodes}
    run_of = {node: i for i, row in enumerate(runs) for name in row for node in capture.groups[name].nodes}
    calls, left = whole_calls(capture, inside, sends, run_of) if with_modules else ((), {})
    cutter = _Cutter(capture, inside, calls, view, run_of)
    leaves = capture.outputs if LOSS in chosen else ()
    module = cutter.cut(sends, leaves)
    parameters = {p: None for name in capture.groups if name in chosen for p in capture.groups[name].parameters}
    names = tuple(cutter.receives), tuple(cutter.raw), sends, tuple(parameters)
    return Part(capture, *names, LOSS in chosen, module, calls, left, tuple(cutter.read))


class _Cutter:
    """Copies nodes of a program into a new graph; placeholders represent all that lies outside."""

    def __init__(
        self,
        capture: Capture,
        inside: set[fx.Node],
        calls: Iterable[ModuleCall],
        view: nn.Module | None,
        run_of: Mapping[fx.Node, int],
    ) -> None:
        self.capture, self.view, self.run_of = capture, view, run_of
        self.read: dict[str, None] = {}
        self.inside = inside
        self.call_of = {node: call for call in calls for node in call.nodes if node in inside}
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.receives: dict[str, fx.Node] = {}
        self.raw: dict[str, fx.Node] = {}
        self.attributes: dict[str, Any] = {}

    def cut(self, sends: tuple[str, ...], leaves: tuple[Any, ...]) -> fx.GraphModule:
        """Copy what is inside and return it as a module with outputs (*sends, *leaves)."""
        program = self.capture.program.module
        by_name = {node.name: node for node in program.graph.nodes}
        for node in program.graph.nodes:
            if node in self.inside and node not in self.copies:
                self._copy(node)
        for node in entering_nodes(self.capture, self.call_of):  # what modules do without: a flat part reads the same
            if node.op == "placeholder":
                self._value(node)
        values = [self._value(by_name[name]) for name in sends]
        values += [self._value(leaf) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        self.graph.output(tuple(values))
        self._sort_placeholders()
        self.graph.lint()
        return fx.GraphModule(self.attributes, self.graph)

    def _value(self, node: fx.Node) -> fx.Node:
        """Return the copy of a node, or the placeholder that represents it."""
        if node in self.copies:
            return self.copies[node]
        if node.op == "placeholder":
            return self._placeholder(node, self.raw)
        if node.op == "get_attr" or node in self.capture.replicated or node in self.inside:
            return self._copy(node)
        return self._placeholder(node, self.receives)

    def _copy(self, node: fx.Node) -> fx.Node:
        if node in self.call_of:
            self._call(self.call_of[node])
            return self.copies[node]
        for source in node.all_input_nodes:
            self._value(source)
        if node.op == "get_attr":
            return self._attribute(node)
        self.copies[node] = copy = self.graph.node_copy(node, self._value)
        self._mark(copy, node)
        return copy

    def _mark(self, copy: fx.Node, node: fx.Node) -> None:
        """Note with which run a copy is computed again, as its node is."""
        if node in self.run_of:
            copy.meta[RUN] = self.run_of[node]

    def _attribute(self, node: fx.Node) -> fx.Node:
        # One flat attribute each: looking one up through nested modules takes microseconds a step.
        value = fetch(self.capture.program.module, node.target)
        name = self.capture.name_of.get(id(value))
        if name is not None:
            self.read[name] = None
        if name is not None and self.view is not None:
            self.attributes[node.name] = Reading(self.view, name)
            copy = self.graph.call_module(node.name)
        else:
            self.attributes[node.name] = value
            copy = self.graph.node_copy(node)
            copy.target = node.name
        self.copies[node] = copy
        return copy

    def _call(self, call: ModuleCall) -> None:
        """Call a module in place of what it computes, of which only its outputs are there then."""
        name = f"call_{len(self.attributes)}"
        self.attributes[name] = MadeCall(self._module(call.path), call)
        made = self.graph.call_module(name, tuple(self._value(node) for node in call.inputs.nodes))
        self._mark(made, next(node for node in call.nodes if node in self.inside))
        for number, node in enumerate(call.outputs.nodes):
            if node not in self.copies:  # a module may return what it was given
                self.copies[node] = self.graph.call_function(getitem, (made, number))
                self._mark(self.copies[node], node)
        for node in call.nodes:
            if node in self.call_of and node not in self.copies:
                before = passed_on(node, call.nodes)
                self.copies[node] = made if before in call.nodes else self._value(before)

    def _module(self, path: str) -> nn.Module:
        try:
            return (self.view or self.capture.model.module).get_submodule(path)
        except AttributeError:
            raise DoesNotMatch(f"the stage calls the module {path!r}, which is no longer there") from None

    def _placeholder(self, node: fx.Node, kept: dict[str, fx.Node]) -> fx.Node:
        self.copies[node] = kept[node.name] = self.graph.placeholder(node.name)
        return self.copies[node]

    def _sort_placeholders(self) -> None:
        """Move receives, then raw inputs, to the top, each in program order."""
        order = {node.name: i for i, node in enumerate(self.capture.program.module.graph.nodes)}
        self.receives = dict(sorted(self.receives.items(), key=lambda item: order[item[0]]))
        self.raw = dict(sorted(self.raw.items(), key=lambda item: order[item[0]]))
        anchor = next(iter(self.graph.nodes))
        for node in (*self.receives.values(), *self.raw.values()):
            if node is not anchor:
                anchor.prepend(node)
            else:
                anchor = anchor.next
