"""The graph passes that turn a flat program into operators; none of the three can be left out.

Checks are dropped; sizes of activations are read from raw inputs; parameter-free nodes without
gradient are marked for replication into their consumers; nodes that mutate storage, pick from a tuple
or hand on a number are glued to what they belong to. Leaves out what a group costs.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import networkx as nx
import torch
from torch import fx
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from costmodel.capture.custom_functions import OpaqueFunction
from costmodel.capture.shapes import TensorInfo, fetch

Infos = Mapping[str, tuple[TensorInfo, ...]]

CALL = "penstock_call"
"""Key of a node's meta: nodes of an equal number belong to one call of a leaf module, and stay together."""


def drop_checks(graph: fx.Graph) -> None:
    """Erase export's assertions and every pure node that nobody reads, in autocast's and other regions too.

    An assertion inside a region would hold a model that was captured on meta to that device.
    """
    for inner in graph.owning_module.modules() if graph.owning_module is not None else ():
        if isinstance(inner, fx.GraphModule) and inner.graph is not graph:
            drop_checks(inner.graph)
            inner.recompile()
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or node.users:
            continue
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator) or mutated_arguments(node):
            continue
        graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def read_sizes_from_inputs(graph: fx.Graph) -> None:
    """Replace sizes of activations by expressions of the raw inputs' sizes, wherever they are equal.

    Otherwise a stage that needs only the batch size would have to receive the activation.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    place: dict[Any, tuple[fx.Node, int]] = {}
    for node in placeholders:
        for dimension, length in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if isinstance(length, torch.SymInt) and length.node.expr.is_Symbol:
                place.setdefault(length.node.expr, (node, dimension))
    sizes: dict[Any, Any] = {}
    first = next((node for node in graph.nodes if node.op not in ("placeholder", "get_attr")), None)
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.sym_size.int or node.args[0].op == "placeholder":
            continue
        expression = node.meta["val"].node.expr
        if not expression.free_symbols <= place.keys():
            continue
        with graph.inserting_before(first):
            for symbol in sorted(expression.free_symbols, key=str):
                if symbol not in sizes:
                    sizes[symbol] = fx.Proxy(graph.call_function(torch.ops.aten.sym_size.int, place[symbol]))
            size = sympy_interp(PythonReferenceAnalysis, {s: sizes[s] for s in expression.free_symbols}, expression)
        node.replace_all_uses_with(size.node if isinstance(size, fx.Proxy) else int(size))
        graph.erase_node(node)


def replicable(graph: fx.Graph, infos: Infos, parameters: frozenset[str]) -> frozenset[fx.Node]:
    """Return the nodes that every consumer computes for itself: masks, position tables, sizes.

    They depend on raw inputs, constants and buffers alone, carry no gradient, draw no random numbers
    and touch no storage that anything mutates. `parameters` are the names of get_attr nodes that
    are parameters.
    """
    mutated = _mutated_storages(graph, infos)
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or mutated_arguments(node) or not _deterministic(node):
            continue
        if any(info.requires_grad or info.storage in mutated for info in infos.get(node.name, ())):
            continue
        if any(_touches(source, mutated, infos) and infos.get(node.name) for source in node.all_input_nodes):
            continue
        if all(_is_free(source, found, parameters) for source in node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def group_nodes(graph: fx.Graph, infos: Infos, replicated: frozenset[fx.Node]) -> list[list[fx.Node]]:
    """Return groups of nodes that must stay together, in a topological order, each in program order."""
    nodes = [node for node in graph.nodes if node.op == "call_function" and node not in replicated]
    position = {node: i for i, node in enumerate(nodes)}
    glue = nx.utils.UnionFind(nodes)
    glued = _tuples_and_numbers(nodes, infos), _mutation_chains(nodes, infos), _side_effects(nodes), _calls(nodes)
    for together in chain.from_iterable(glued):
        known = [node for node in together if node in position]
        if known:
            glue.union(*known)
    while True:
        quotient = _quotient(nodes, glue)
        cycles = [part for part in nx.strongly_connected_components(quotient) if len(part) > 1]
        if not cycles:
            break
        for cycle in cycles:
            glue.union(*cycle)
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        members.setdefault(glue[node], []).append(node)
    order = nx.lexicographical_topological_sort(quotient, key=lambda root: position[members[root][0]])
    return [members[root] for root in order]


def mutated_arguments(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose values this one writes into: by its operator's schema, or what a region does inside.

    Norms that train write their running averages, which their schemas do not say.
    """
    region = _region(node)
    if region is not None:
        body, given = region
        own = dict(zip(body.graph.find_nodes(op="placeholder"), given, strict=False))
        written = [
            source
            for inner in body.graph.nodes
            for target in mutated_arguments(inner)
            for source in seen_through(target)
        ]
        return [own[source] for source in dict.fromkeys(written) if isinstance(own.get(source), fx.Node)]
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    names = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    found: list[fx.Node] = []
    given_by_name = {a.name: node.args[i] for i, a in enumerate(schema.arguments) if i < len(node.args)} | dict(
        node.kwargs
    )
    if node.target in AVERAGING and given_by_name.get(AVERAGING[node.target]):
        names += ["running_mean", "running_var"]
    for name in names:
        value = given_by_name.get(name)
        values = value if isinstance(value, list | tuple) else [value]
        found += [item for item in values if isinstance(item, fx.Node)]
    return found


AVERAGING: Mapping[Any, str] = {
    torch.ops.aten.batch_norm.default: "training",
    torch.ops.aten.instance_norm.default: "use_input_stats",
}
"""Norms with running averages, and the argument that says that they are written."""


def _region(node: fx.Node) -> tuple[fx.GraphModule, Sequence[Any]] | None:
    """Return the body of a region (autocast's, or one without gradients) and what it is given; None for others."""
    if not isinstance(node.target, torch._ops.HigherOrderOperator) or node.graph.owning_module is None:
        return None
    for place, argument in enumerate(node.args):
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            body = fetch(node.graph.owning_module, argument.target)
            if isinstance(body, fx.GraphModule):
                return body, node.args[place + 1 :]
    return None


def seen_through(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose storage a node's value may be: through views, and calls that write in place."""
    if node.op != "call_function":
        return [node]
    schema = getattr(node.target, "_schema", None)
    aliased = [i for i, a in enumerate(schema.arguments) if a.alias_info is not None] if schema is not None else []
    sources = [node.args[i] for i in aliased if i < len(node.args)]
    return [found for source in sources if isinstance(source, fx.Node) for found in seen_through(source)] or [node]


def _quotient(nodes: Sequence[fx.Node], glue: Any) -> Any:
    quotient: Any = nx.DiGraph()
    quotient.add_nodes_from(glue[node] for node in nodes)
    known = set(nodes)
    for node in nodes:
        for source in node.all_input_nodes:
            if source in known and glue[source] is not glue[node]:
                quotient.add_edge(glue[source], glue[node])
    return quotient


def _tuples_and_numbers(nodes: Sequence[fx.Node], infos: Infos) -> Iterable[list[fx.Node]]:
    """Keep a tuple with what picks from it, and a number with its readers: only tensors are sent."""
    for node in nodes:
        value = node.meta.get("val")
        is_tuple = isinstance(value, list | tuple) or any(user.target is operator.getitem for user in node.users)
        if is_tuple or not infos.get(node.name):
            yield [node, *node.users]


def _mutation_chains(nodes: Sequence[fx.Node], infos: Infos) -> Iterable[list[fx.Node]]:
    """Keep together all that makes, reads or writes a storage up to its last mutation.

    Later readers see the final value; an earlier reader elsewhere would race with the mutation. Of what the model holds
    itself, its buffers, later readers belong to it as well: elsewhere they would read a copy that nobody writes.
    """
    last: dict[int, int] = {}
    held: set[int] = set()
    for i, node in enumerate(nodes):
        for target in mutated_arguments(node):
            for info in infos.get(target.name, ()):
                last[info.storage] = i
                held |= {info.storage} if any(root.op == "get_attr" for root in seen_through(target)) else set()
    for storage, end in last.items():
        yield [
            node
            for node in (nodes if storage in held else nodes[: end + 1])
            if any(_touches(value, {storage}, infos) for value in (node, *node.all_input_nodes))
            and (infos.get(node.name) or node.target in _REGIONS)
        ]


_REGIONS = (torch.ops.higher_order.wrap_with_set_grad_enabled, torch.ops.higher_order.wrap_with_autocast)
"""Calls that may write without giving a tensor."""


def _side_effects(nodes: Sequence[fx.Node]) -> Iterable[list[fx.Node]]:
    """Keep a node that only mutates (BatchNorm's counter) with its neighbour of the same module."""
    for i, node in enumerate(nodes):
        if node.users or not mutated_arguments(node):
            continue
        around = [*nodes[i + 1 :], *reversed(nodes[:i])]
        same = [other for other in around if module_path(other) == module_path(node) and other.users]
        if same or around:
            yield [node, (same or around)[0]]


def _calls(nodes: Sequence[fx.Node]) -> Iterable[list[fx.Node]]:
    """Keep the nodes of one call of a leaf module together, where a trace has noted calls."""
    found: dict[int, list[fx.Node]] = {}
    for node in nodes:
        if CALL in node.meta:
            found.setdefault(node.meta[CALL], []).append(node)
    return found.values()


def module_path(node: fx.Node) -> str:
    """Return the path, in the user's model, of the innermost module whose forward made the node."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if not entry[0].startswith("_empty_nn_module_stack")]
    # Export wraps the user's model as `model`, and numbers a module's repeated calls: tower@1.
    return str(paths[-1]).split("@")[0].removeprefix("model").removeprefix(".") if paths else ""


def kind_of(nodes: Sequence[fx.Node]) -> str:
    """Return a short readable kind of a group: what its nodes compute, in order."""
    named = {
        _kind(node): None for node in nodes if node.target is not operator.getitem and (node.users or len(nodes) == 1)
    }
    return "+".join(named) or _kind(nodes[0])


def _kind(node: fx.Node) -> str:
    if isinstance(node.target, OpaqueFunction):
        return node.target.function.__name__
    schema = getattr(node.target, "_schema", None)
    name = schema.name.split("::")[-1] if schema is not None else getattr(node.target, "__name__", str(node.target))
    return str(name).strip("_")


def _mutated_storages(graph: fx.Graph, infos: Infos) -> set[int]:
    return {
        info.storage
        for node in graph.nodes
        if node.op == "call_function"
        for target in mutated_arguments(node)
        for info in infos.get(target.name, ())
    }


def _touches(node: fx.Node, storages: set[int], infos: Infos) -> bool:
    return any(info.storage in storages for info in infos.get(node.name, ()))


def _is_free(source: fx.Node, replicated: set[fx.Node], parameters: frozenset[str]) -> bool:
    if source.op == "placeholder":
        return True
    return source in replicated or (source.op == "get_attr" and source.name not in parameters)


def _deterministic(node: fx.Node) -> bool:
    """Whether two computations give the same value: no random numbers, inside submodules neither."""
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return False
    inner = [a for a in node.all_input_nodes if a.op == "get_attr"]
    owner = node.graph.owning_module
    for attribute in inner:
        value: Any = owner
        for part in str(attribute.target).split("."):
            value = getattr(value, part)
        if isinstance(value, fx.GraphModule) and not all(map(_deterministic, value.graph.nodes)):
            return False
    return True
