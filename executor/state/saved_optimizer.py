"""What a checkpoint has for an optimizer: the state of each of this rank's parameters, and the options of its groups.

All of it is read, and refused where it does not fit, before anything of the optimizer is changed. Leaves out how it is
saved (`checkpoint`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from costmodel.errors import DoesNotMatch
from executor.model.tensor_file import TYPES
from executor.state.checkpoint_index import Checkpoint, SavedGroup
from executor.state.plain_values import names_of_tensors


class SavedOptimizer:
    """State and options for an optimizer.

    Parameters
    ----------
    found : Checkpoint
    optimizer : torch.optim.Optimizer
    parameters : mapping of str to torch.Tensor
        This rank's trainable ones.

    Raises
    ------
    DoesNotMatch
        When the checkpoint was saved without an optimizer, or with other groups.
    """

    def __init__(
        self, found: Checkpoint, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> None:
        self._found, self._optimizer = found, optimizer
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._states, self._options = self._read_states(), self._read_options()

    def put(self) -> None:
        """Give the optimizer what was read."""
        self._optimizer.state.clear()
        self._optimizer.state.update(self._states)
        for group, options in zip(self._optimizer.param_groups, self._options, strict=True):
            _set(group, options)

    def _read_states(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Return what the optimizer keeps of each parameter; nothing of one that had no gradient yet."""
        if not self._found.index.optimizer:
            raise DoesNotMatch(
                f"the checkpoint {self._found.folder} holds no optimizer's state; it was saved without one"
            )
        states: dict[torch.Tensor, dict[str, Any]] = {}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                kept = self._found.index.states.get(self._names.get(id(parameter), ""))
                if kept:
                    states[parameter] = {k: self._value(v, parameter, group) for k, v in kept.items()}
        return states

    def _value(self, encoded: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
        """Return a value that an optimizer keeps, where and as it would make it; numbers stay on the host."""
        names = names_of_tensors(encoded)
        stored = self._found.index.tensors.get(names[0]) if names else None
        if stored is None or encoded.get("name") != names[0]:
            return self._found.value(encoded)
        if not stored.shape:
            value = self._found.read(names[0])
            return value.to(parameter.device) if group.get("capturable") or group.get("fused") else value
        dtype, like, same = TYPES[stored.type], parameter.detach(), stored.shape == tuple(parameter.shape)
        made = torch.empty_like(like, dtype=dtype) if same else like.new_zeros(stored.shape, dtype=dtype)
        self._found.fill(names[0], made)
        return made

    def _read_options(self) -> list[dict[str, Any]]:
        """Return the options that each group of the optimizer had."""
        saved = self._found.index.groups
        of_parameter = {name: group for group in reversed(saved) for name in group.parameters}
        chosen = []
        for index, group in enumerate(self._optimizer.param_groups):
            names = (self._names.get(id(parameter)) for parameter in group["params"])
            own = [of_parameter[name] for name in names if name in of_parameter]
            self._check_alike(index, own)
            same = [other for other in saved if other.index == index]
            found = next(iter(own or sorted(same, key=lambda other: not other.parameters)), None)
            options = {} if found is None else self._found.value(found.options)
            if found is not None:
                self._check_complete(group, options)
            chosen.append(options)
        return chosen

    def _check_alike(self, index: int, own: Sequence[SavedGroup]) -> None:
        """Refuse to put parameters that had other options into one group."""
        values = [self._found.value(group.options) for group in own]
        for other, value in zip(own, values, strict=True):
            if not _alike(value, values[0]):
                raise DoesNotMatch(
                    f"group {index} of the optimizer holds parameters that were saved with other options: "
                    f"{own[0].parameters[0]!r} with {_brief(values[0])}, {other.parameters[0]!r} with {_brief(value)}; "
                    "make groups as they were when the checkpoint was saved"
                )

    def _check_complete(self, group: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Refuse options of another optimizer that lacks some of this one's."""
        saved, kind = self._found.index.optimizer, type(self._optimizer).__name__
        lacks = sorted(group.keys() - {"params"} - options.keys()) if kind != saved else []
        if lacks:
            raise DoesNotMatch(
                f"the checkpoint {self._found.folder} was saved with the optimizer {saved}, whose groups have no "
                f"{lacks[0]!r}, and this one is {kind}: make the same, or load without"
            )


def _alike(one: Any, other: Any) -> bool:
    """Whether two values of options are the same; tensors by their values."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(type(one) is type(other) and one == other)


def _brief(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in list(options.items())[:3])


def _set(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Give a group its options; one that is a tensor stays that tensor, for graphs that were recorded with it."""
    for key, value in options.items():
        if isinstance(group.get(key), torch.Tensor):
            group[key].copy_(torch.as_tensor(value))
        else:
            group[key] = value
