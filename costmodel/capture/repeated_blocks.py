"""Blocks of a model that compute the same, found by one run without values, so that each kind is captured once.

Two blocks of a list are alike where the calls of one run are the same: targets, numbers, shapes of parameters of their
own, what they read of the block before and of elsewhere. While a model is exported only two of each kind (the second
shows what a block shares with others), the first and the last of a list compute; the others hand on what the block
before them gave, and `costmodel.architectures.block_copies` puts their operators back. Leaves out blocks that hand on
several tensors, or whose output others than the next block read: these compute.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch._export.utils import _compiling_state_context
from torch.utils import _pytree as pytree

from costmodel.capture.attention import configs_with_cache, mask_free_attention, no_cache
from costmodel.capture.batches import TrainingModel
from costmodel.capture.eager import trace_eagerly
from costmodel.capture.passes import module_path
from costmodel.capture.shapes import fetch
from costmodel.model.blocks import block_of

FEWEST = 5
"""Blocks of a list below which nothing is looked for: the first, the last and two of a kind compute anyway."""


@dataclass(slots=True)
class RepeatedBlocks:
    """Lists of blocks by path, in order, and of each block that need not compute the one that computes the same.

    `passed` holds those that handed their input on when the model was captured last.
    """

    lists: tuple[tuple[str, ...], ...] = ()
    like: Mapping[str, str] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)

    def pass_on(self, module: nn.Module) -> None:
        """Let the blocks that need not compute hand on what they get, from now on."""
        given: dict[str, Any] = {}
        for blocks in self.lists:
            for before, path in pairwise(("", *blocks)):
                block = module.get_submodule(path)
                vars(block)["forward"] = self._noted(block.forward, path, before, given)  # past nn.Module's look

    def compute(self, module: nn.Module) -> None:
        """Let all blocks compute again."""
        for path in (path for blocks in self.lists for path in blocks):
            vars(module.get_submodule(path)).pop("forward", None)
        self.passed.clear()

    def _noted(self, forward: Any, path: str, before: str, given: dict[str, Any]) -> Any:
        @wraps(forward)
        def noted(*args: Any, **kwargs: Any) -> Any:
            found = self._handed_on(given.get(before), given.get(self.like.get(path, "")), args, kwargs)
            (self.passed.discard if found is None else self.passed.add)(path)
            given[path] = forward(*args, **kwargs) if found is None else found
            return given[path]

        return noted

    @staticmethod
    def _handed_on(before: Any, alike: Any, args: Any, kwargs: Any) -> Any:
        """Return the block before's tensor as a block that is alike returns its own; None where that is not so."""
        own, other = _tensors(before), _tensors(alike)
        if len(own) != 1 or len(other) != 1 or (own[0].shape, own[0].dtype) != (other[0].shape, other[0].dtype):
            return None
        if not any(leaf is own[0] for leaf in pytree.tree_leaves((args, kwargs))):
            return None
        return pytree.tree_map(lambda leaf: own[0] if isinstance(leaf, torch.Tensor) else leaf, alike)


def repeated_blocks(model: TrainingModel) -> RepeatedBlocks:
    """Return what of a model's lists of blocks computes the same; nothing where it does not run without values."""
    lists = [
        blocks
        for name, module in model.module.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        and len(blocks := tuple(f"{name}.{key}".removeprefix(".") for key, _ in module.named_children())) >= FEWEST
        and all(block_of(path) == path for path in blocks)
    ]
    if not lists:
        return RepeatedBlocks()
    try:
        with no_cache(configs_with_cache(model.module)), mask_free_attention(model), _compiling_state_context():
            program, *_ = trace_eagerly(model)  # with the choices that models make while they are exported
    except Exception:  # whatever the model's code raises, its capture raises again
        return RepeatedBlocks()
    run = _Run(program, model.module)
    like = {path: first for blocks in lists for path, first in run.alike(blocks)}
    held = tuple(blocks for blocks in lists if not like.keys().isdisjoint(blocks))
    return RepeatedBlocks(held, like)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class _Run:
    """The calls of one run, by block."""

    def __init__(self, program: fx.GraphModule, model: nn.Module) -> None:
        self._program = program
        self._names = {id(tensor): name for name, tensor in (*model.named_buffers(), *model.named_parameters())}
        self._nodes: dict[str, list[fx.Node]] = {}
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._nodes.setdefault(block_of(module_path(node)), []).append(node)
        self._place = {node: i for i, node in enumerate(program.graph.nodes)}

    def alike(self, blocks: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield each block but the first and last that computes what two earlier ones do, with the second of them."""
        kinds: dict[object, list[str]] = {}
        for before, path, after in zip(blocks, blocks[1:], blocks[2:], strict=False):
            users = {user for node in self._handed_on(path) for user in node.users}
            others = users - {*self._nodes.get(path, ()), *self._nodes.get(after, ())}
            if len(self._handed_on(path)) != 1 or others:
                continue
            found = kinds.setdefault(tuple(self._calls(path, before)), [])
            if len(found) == 2:
                yield path, found[1]
            else:
                found.append(path)

    def _handed_on(self, path: str) -> list[fx.Node]:
        """Return the nodes of a block that others read, in order."""
        inside = set(self._nodes.get(path, ()))
        return [node for node in self._nodes.get(path, ()) if not inside.issuperset(node.users)]

    def _calls(self, path: str, before: str) -> Iterator[tuple[object, ...]]:
        """Yield each call of a block: target, module, and what it reads, told alike for blocks that are alike."""
        own = {node: i for i, node in enumerate(self._nodes.get(path, ()))}
        previous = {node: i for i, node in enumerate(self._handed_on(before))}

        def told(node: fx.Node) -> str:
            if node in own:
                return f"own {own[node]}"
            if node in previous:
                return f"before {previous[node]}"
            return self._held(node, path) if node.op == "get_attr" else f"node {self._place[node]}"

        for node in own:
            read = repr(pytree.tree_map(lambda leaf: told(leaf) if isinstance(leaf, fx.Node) else leaf,
                                        (list(node.args), dict(node.kwargs))))  # fmt: skip
            yield node.target, module_path(node).removeprefix(path), read

    def _held(self, node: fx.Node, path: str) -> str:
        """Return what a tensor is that the model holds; of one that no name is known of, which it is."""
        tensor = fetch(self._program, node.target)
        name = self._names.get(id(tensor), f"constant {self._place[node]}")
        inside = name.startswith(f"{path}.")
        return f"{name.removeprefix(path) if inside else name} {tensor.shape} {tensor.dtype} {tensor.requires_grad}"
