"""Checkpoints by the unsplit model's names: what was saved under one plan is loaded under another.

Each rank writes what it holds to a file of its own beside the checkpoint that is there; when all have, rank 0 puts the
index in place, by one rename, and removes the old files. So at any moment the folder holds one whole checkpoint:
parameters and buffers, what the optimizer keeps, all of its groups but the parameters, the number of steps, extra
states of modules, and what the program gives along. Leaves out random states, which follow from seed and step.
"""

import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from costmodel.errors import DoesNotMatch, PenstockError
from executor.communication.groups import RefusedAlike
from executor.model.tensor_file import NAMES, write_tensors
from executor.stages.user_parallelize import own_part, own_place
from executor.state.checkpoint_index import Checkpoint, Index, SavedGroup, SavedPart, Stored, file_name, identity_of
from executor.state.plain_values import encode
from executor.state.saved_optimizer import SavedOptimizer
from executor.state.state import modules_with_extra_state, own_state
from executor.worker import Worker

_MODEL, _OPTIMIZER = "model.", "optimizer."


def save_checkpoint(worker: Worker, folder: str | Path, optimizer: torch.optim.Optimizer | None, extra: Any) -> None:
    """Write a checkpoint into a folder that all ranks see; collective.

    Raises
    ------
    RefusedAlike
        When something cannot be saved, or written. The checkpoint that was there stands.
    """
    groups, target = worker.context.groups, Path(folder)
    worker.averages.agree()
    with groups.refusing_alike(), _refused_in_words(target):
        held = _Held(worker, optimizer, extra)
        if worker.context.rank == 0:
            target.mkdir(parents=True, exist_ok=True)
    told = json.dumps([secrets.token_hex(8), [held.described(name) for name in held.tensors]]).encode()
    rows = [json.loads(row) for row in groups.all_gather_bytes(told)]
    identity, steps = rows[0][0], worker.draws.step
    tensors = _shared_out([row for _, row in rows])
    mine = {name: own_part(held.tensors[name]) for name in held.tensors if held.writes(tensors[name], name)}
    name = file_name(steps, identity, worker.context.rank)
    try:
        with groups.refusing_alike(), _refused_in_words(target):
            size = write_tensors(target / name, mine, identity_of(identity, steps, worker.context.rank))
    except RefusedAlike:
        (target / name).unlink(missing_ok=True)  # it takes the room that lacks
        raise
    answers = groups.gather_bytes(json.dumps([name, size, *held.values]).encode())
    with groups.refusing_alike(), _refused_in_words(target):
        if answers is not None:
            _index(identity, steps, tensors, [json.loads(row) for row in answers]).write(_seen(target, answers))


def _seen(folder: Path, answers: list[bytes]) -> Path:
    """Return the folder, if it holds what all ranks say that they have written."""
    for rank, row in enumerate(answers):
        name = json.loads(row)[0]
        if not (folder / name).exists():
            raise DoesNotMatch(
                f"rank {rank} has written {name}, and rank 0 does not see it in {folder}: give a folder on a file "
                "system that all ranks share"
            )
    return folder


@contextmanager
def _refused_in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except DoesNotMatch:
        raise
    except PenstockError as error:
        raise DoesNotMatch(str(error)) from None
    except OSError as error:
        raise DoesNotMatch(
            f"{folder}: {error.strerror or error}; the checkpoint that was there stands: name a folder that all ranks "
            "may write to and that has room"
        ) from None


class _Held:
    """What one rank holds: its tensors by name, and the rest as JSON."""

    def __init__(self, worker: Worker, optimizer: torch.optim.Optimizer | None, extra: Any) -> None:
        self.rank = worker.context.rank
        self.tensors: dict[str, torch.Tensor] = {}
        for name, tensor in own_state(worker).items():
            if name in worker.keys:  # others are persistent nowhere
                self._keep(_MODEL + name, tensor)
        states: dict[str, Any] = {}
        groups: list[Any] = []
        if optimizer is not None:
            names = {id(parameter): name for name, parameter in worker.parameters.items()}
            _check_kept(optimizer, names)
            for parameter, state in optimizer.state.items():
                name = names[id(parameter)]
                states[name] = {key: self._state(parameter, f"{_OPTIMIZER}{name}.{key}", v) for key, v in state.items()}
            for index, group in enumerate(optimizer.param_groups):
                place = f"{_OPTIMIZER}param_groups[{index}]"
                options = {k: encode(v, f"{place}[{k!r}]", self._own) for k, v in group.items() if k != "params"}
                groups.append([index, [names[id(p)] for p in group["params"] if id(p) in names], options])
        modules = {
            path: encode(module.get_extra_state(), f"the extra state of {path!r}", self._own)
            for path, module in (modules_with_extra_state(worker) if worker.context.rank == 0 else ())
        }
        self.values = [
            type(optimizer).__name__ if optimizer is not None else "", states, groups, modules,
            encode(extra, "extra", self._own),
        ]  # fmt: skip

    def _keep(self, name: str, tensor: torch.Tensor) -> str:
        if tensor.layout != torch.strided or tensor.dtype not in NAMES or tensor.is_quantized:
            raise DoesNotMatch(f"{name} is a tensor of {tensor.layout} and {tensor.dtype}, which no checkpoint takes")
        self.tensors[name] = tensor.detach()
        return name

    def _own(self, place: str, tensor: torch.Tensor) -> str:
        """Keep a tensor that is this rank's alone."""
        if isinstance(tensor, DTensor):
            raise DoesNotMatch(f"{place} is a tensor that ranks hold parts of; give its to_local(), or full_tensor()")
        return self._keep(f"{place} of rank {self.rank}", tensor)

    def _state(self, parameter: torch.Tensor, place: str, value: Any) -> Any:
        def keep(name: str, tensor: torch.Tensor) -> str:
            if isinstance(parameter, DTensor) and tensor.dim() and not isinstance(tensor, DTensor):
                raise DoesNotMatch(
                    f"the optimizer keeps {name} of this rank's part alone, as a plain tensor, and the parameter is "
                    "divided (ZeRO-2, ZeRO-3 or a tensor degree): it cannot be saved whole; plan with --zero 0 or 1"
                )
            return self._keep(name, tensor)

        return encode(value, place, keep)

    def described(self, name: str) -> Any:
        """Return what others have to know of a tensor of this rank."""
        tensor = self.tensors[name]
        start, shape = own_place(tensor)
        return [name, NAMES[tensor.dtype], list(tensor.shape), list(start), list(shape)]

    def writes(self, stored: Stored, name: str) -> bool:
        """Whether this rank is the one that writes its part of a tensor."""
        return (self.rank, own_place(self.tensors[name])[0]) in {(part.file, part.start) for part in stored.parts}


def _check_kept(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
    """Refuse what an optimizer keeps elsewhere than by parameter and in its groups: it would be lost."""
    for parameter in optimizer.state:
        if id(parameter) not in names:
            what = f"state under {parameter!r}" if not isinstance(parameter, torch.Tensor) else "a parameter's state"
            raise DoesNotMatch(
                f"the optimizer keeps {what} that belongs to none of pipe.parameters(): a checkpoint has no name for "
                "it; give it as extra=, and the optimizer one over pipe.parameters()"
            )
    for key in optimizer.state_dict():
        if key not in ("state", "param_groups"):
            raise DoesNotMatch(
                f"the optimizer's state_dict has {key!r} beside its state and groups, which a checkpoint does not "
                "take: give it as extra="
            )


def _shared_out(rows: list[list[Any]]) -> dict[str, Stored]:
    """Deal what ranks hold to writers, each part once: to the rank among its holders that has least to write."""
    holders: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    said: dict[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...], tuple[int, ...]]] = {}
    for rank, row in enumerate(rows):
        for name, dtype, shape, start, own in row:
            holders.setdefault((name, tuple(start)), []).append(rank)
            said[name, tuple(start)] = dtype, tuple(shape), tuple(own)
    loads = [0] * len(rows)
    found: dict[str, tuple[str, tuple[int, ...], list[SavedPart]]] = {}
    for (name, start), ranks in holders.items():
        dtype, shape, own = said[name, start]
        writer = min(ranks, key=lambda rank: (loads[rank], rank))
        size = 1
        for length in own:
            size *= length
        loads[writer] += size
        found.setdefault(name, (dtype, shape, []))[2].append(SavedPart(writer, start, own))
    return {name: Stored(dtype, shape, tuple(parts)) for name, (dtype, shape, parts) in found.items()}


def _index(identity: str, steps: int, tensors: dict[str, Stored], rows: list[list[Any]]) -> Index:
    states: dict[str, Any] = {}
    groups: list[SavedGroup] = []
    for rank, (_, _, _, own, own_groups, _, _) in enumerate(rows):
        states = {**own, **states}
        groups += [SavedGroup(rank, index, tuple(names), options) for index, names, options in own_groups]
    files = [(row[0], row[1]) for row in rows]
    return Index(identity, steps, files, tensors, rows[0][2], states, groups, rows[0][5], [row[6] for row in rows])


def load_checkpoint(worker: Worker, folder: str | Path, optimizer: torch.optim.Optimizer | None) -> tuple[int, Any]:
    """Read what this rank holds from a folder, in place; returns the steps done and what was given along; collective.

    Raises
    ------
    RefusedAlike
        When the checkpoint is broken, lacks something or has it in another shape; nothing is changed then.
    """
    groups, rank = worker.context.groups, worker.context.rank
    with groups.refusing_alike(), _refused_in_words(Path(folder)):
        found = Checkpoint(Path(folder))
    identities = groups.all_gather_bytes(found.index.id.encode())
    if len(set(identities)) > 1:
        raise RefusedAlike(f"ranks see different checkpoints in {folder}: give a folder that all ranks share")
    with groups.refusing_alike(), _refused_in_words(Path(folder)):
        wanted = _wanted(worker, found)
        saved = None if optimizer is None else SavedOptimizer(found, optimizer, worker.parameters)
        extra = found.value(found.index.given[rank if rank < len(found.index.given) else 0])
    for name, tensor in wanted.items():
        found.fill(name, tensor)
    for path, module in modules_with_extra_state(worker):
        if path in found.index.modules:
            module.set_extra_state(found.value(found.index.modules[path]))
    if saved is not None:
        saved.put()
    elif found.index.optimizer and rank == 0:
        print(
            f"{folder}: the optimizer's state in this checkpoint ({found.index.optimizer}) was not loaded, for no "
            "optimizer was given: pipe.load(folder, optimizer) goes on as it was",
            file=sys.stderr,
            flush=True,
        )
    worker.draws.step = found.index.steps
    worker.averages.restart()
    return worker.draws.step, extra


def _wanted(worker: Worker, found: Checkpoint) -> dict[str, torch.Tensor]:
    """Return the tensors of this rank to fill, by their names in the checkpoint."""
    wanted, rank = {}, worker.context.rank
    for name, tensor in own_state(worker).items():
        stored = found.index.tensors.get(_MODEL + name)
        if name not in worker.keys or (stored is None and name in worker.spare):
            continue
        if stored is None:
            raise DoesNotMatch(f"the checkpoint {found.folder} holds no {name!r}, which rank {rank} needs")
        _check_shape(found, _MODEL + name, tensor, stored)
        wanted[_MODEL + name] = tensor
    return wanted


def _check_shape(found: Checkpoint, name: str, tensor: torch.Tensor, stored: Stored) -> None:
    if tuple(tensor.shape) != stored.shape:
        raise DoesNotMatch(
            f"{name} has the shape {list(stored.shape)} in the checkpoint {found.folder} and {list(tensor.shape)} here"
        )
