"""What each operator keeps for its backward, which values share a storage, and floating-point operations.

Seen in one real step, so that the device's own kernels decide what they save. Parameters, buffers and
raw inputs are not counted: they are there before the step. Leaves out kernels' workspace.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes as _uncounted
from torch.utils.flop_counter import FlopCounterMode

from costmodel.capture.batches import TrainingModel, take
from costmodel.capture.capture import Capture, operator_graph
from costmodel.capture.experts import GROUPED, grouped_flop
from costmodel.capture.kernel_attention import ATTENTION, ATTENTIONS, attend, attention_flop
from costmodel.capture.models import explain
from costmodel.errors import InvalidInput, PenstockError
from costmodel.model.graph import LOSS, OperatorGraph, SavedStorage
from costmodel.profiling.measure.walk import Walk

_FUSED_ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention") for kernel in ("flash", "efficient", "cudnn")
)


_LOOPS = frozenset({"scan", "associative_scan", "while_loop", "map_impl"})
"""Operators of torch that its counter cannot look into: their operations are not counted."""


def _drop_out(values: torch.Tensor, rate: float, train: bool) -> torch.Tensor:
    """Drop values as a device's kernel does, whose mask has one byte a value."""
    return torch.native_dropout(values, rate, train)[0] if train and rate else values


_KERNELS: Mapping[Any, Callable[..., torch.Tensor]] = {ATTENTION: attend, torch.ops.aten.dropout.default: _drop_out}
"""What stands for operators that torch takes apart on `meta`, and keeps more of than devices do."""


def _nothing(*_: object, **__: object) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One step's memory at one micro-batch size.

    `saved` is (storage, bytes) by operator, `storages` the storage of each tensor by node name, `flop`
    the forward's floating-point operations by operator, all for the whole micro-batch.
    """

    saved: Mapping[str, tuple[tuple[int, int], ...]]
    storages: Mapping[str, int]
    flop: Mapping[str, int]


def observe_memory(walk: Walk, piece: TrainingModel) -> StepMemory:
    """Run one forward with the loss and note what autograd saves.

    Raises
    ------
    InvalidInput
        When a kernel needs values, and the model has none, or the model does not run at this micro-batch size.
    """
    try:
        return _Observer(walk, piece).observe()
    except (PenstockError, torch.OutOfMemoryError):
        raise
    except NotImplementedError as error:
        raise InvalidInput(
            f"{piece.name}: a kernel of the model or its loss does not run without values ({explain(error)}): measure "
            "the model by penstock profile, or describe it with another loss of the same outputs (cross entropy, say)"
        ) from None
    except Exception as error:  # whatever the model's operators, or its loss, raise at this size
        raise InvalidInput(
            f"{piece.name}: the model cannot run with a micro-batch of {piece.batch}: {explain(error)}; choose other "
            "micro-batch sizes, or say by split= which of its inputs are cut, and how"
        ) from None


class _Observer:
    def __init__(self, walk: Walk, piece: TrainingModel) -> None:
        self.walk = walk
        self.piece = piece
        self.ids: dict[int, int] = {}
        self.held: list[StorageWeakRef] = []  # keeps a dead storage's address from being used again
        self.saved: dict[str, dict[int, int]] = {}
        self.storages: dict[str, int] = {}
        self.flop: dict[str, int] = {}
        self.counter = _Counter()
        module = walk.capture.model.module
        fixed = [*module.parameters(), *module.buffers(), *pytree.tree_leaves((piece.args, dict(piece.kwargs)))]
        self.fixed = {t.untyped_storage()._cdata for t in fixed if isinstance(t, torch.Tensor)}

    def observe(self) -> StepMemory:
        capture = self.walk.capture
        with self.counter:
            leaves = self.walk.run(capture.bind(self.piece), self._call)
            output = pytree.tree_unflatten(leaves, capture.program.out_spec)
            with self._belonging_to(LOSS):
                capture.model.evaluate(output, self.piece.targets)
        saved = {name: tuple(rows.items()) for name, rows in self.saved.items()}
        return StepMemory(saved, self.storages, self.flop)

    def _call(self, owner: str, node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        target: Any = node.target
        with self._belonging_to(owner):
            flop = self.flop.get(owner, 0)
            kernel = _KERNELS.get(target, target) if args and getattr(args[0], "is_meta", False) else target
            with _uncounted() if getattr(target, "_name", "") in _LOOPS else nullcontext():
                value = kernel(*args, **kwargs)
        if target in ATTENTIONS:  # torch's counter knows few of its kernels, and in some versions no grouped heads
            self.flop[owner] = flop + attention_flop(args)
        if target in GROUPED:  # nor does it know products of rows with experts
            self.flop[owner] = flop + grouped_flop(args)
        if isinstance(value, torch.Tensor) and node.name in self.walk.capture.flows:
            self.storages[node.name] = self._id(value.untyped_storage())
        return value

    @contextmanager
    def _belonging_to(self, owner: str) -> Iterator[None]:
        rows = self.saved.setdefault(owner, {})

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.fixed:
                rows[self._id(storage)] = storage.nbytes()
            return tensor

        before = _total(self.counter)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield
        self.flop[owner] = self.flop.get(owner, 0) + _total(self.counter) - before

    def _id(self, storage: torch.UntypedStorage) -> int:
        if storage._cdata not in self.ids:
            self.held.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return self.ids.setdefault(storage._cdata, len(self.ids))


class _Counter(FlopCounterMode):
    """Without torch's hooks into modules, which fail inside the branches of torch.cond."""

    mod_tracker: Any

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=dict.fromkeys(_FUSED_ATTENTION, _nothing))
        self.mod_tracker = _NoModules()


class _NoModules(nullcontext[None]):
    parents = ("Global",)


def _total(counter: FlopCounterMode) -> int:
    return sum(counter.get_flop_counts().get("Global", {}).values())


def saved_per_sample(
    small: StepMemory, small_size: int, large: StepMemory, large_size: int
) -> dict[str, tuple[SavedStorage, ...]]:
    """Return saved storages by operator, bytes a sample, from two micro-batch sizes.

    A storage of equal bytes at both does not grow with the micro-batch: it is fixed. Storage ids are
    those of `large`.
    """
    found = {}
    for name, rows in large.saved.items():
        others = small.saved.get(name, ())
        paired = [row[1] for row in others] if len(others) == len(rows) else [0] * len(rows)
        found[name] = tuple(
            SavedStorage(storage, size, True)
            if size == other and small_size != large_size
            else SavedStorage(storage, -(-size // large_size))
            for (storage, size), other in zip(rows, paired, strict=True)
        )
    return found


def saved_bytes(graph: OperatorGraph, microbatch_size: int) -> int:
    """Return the bytes that all operators together keep for the backward, each storage once."""
    union = {s.storage: s.size_bytes * (1 if s.fixed else microbatch_size) for o in graph.operators for s in o.saved}
    return sum(union.values())


def counted_graph(captured: Capture, sizes: tuple[int, ...]) -> OperatorGraph:
    """Return the operator graph with memory and FLOP, seen at two sizes; at one, where the capture fixes its batch."""
    large = sizes[-1]
    small = sizes[0] if len(sizes) > 1 or captured.static_batch else max(1, large // 2)
    kept = {}
    for size in {small, large}:
        at_size = captured.at(size)
        kept[size] = observe_memory(Walk(at_size), take(at_size.model, size))
    return operator_graph(
        captured,
        sizes,
        {name: flop // large for name, flop in kept[large].flop.items()},
        saved_per_sample(kept[small], small, kept[large], large),
        kept[large].storages,
    )
