"""A model that was built on `meta`, given the values that a rank needs: for models larger than a host.

It is captured without values; then each rank makes the parameters and buffers that its stages read, and no others. Of
a tensor that several ranks hold the lowest reads the values, the others get them when the ranks are joined. Leaves out
where values come from: a safetensors file, or a function of the user's.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costmodel.capture.capture import Capture
from executor.model.tensor_file import TensorFile

Values = Callable[[str, torch.Tensor], torch.Tensor] | str | Path
"""(Name, tensor on meta) -> its values; or the path of a safetensors file."""


def with_values(
    captured: Capture,
    wanted: Mapping[int, torch.Tensor],
    read: Collection[int],
    values: Values,
    device: torch.device,
) -> dict[int, torch.Tensor]:
    """Put tensors with values in the place of those on meta, in the model and in its program.

    Parameters
    ----------
    captured : Capture
    wanted : mapping of int to torch.Tensor
        What this rank holds, by id.
    read : collection of int
        Those of them whose values it reads itself.
    values : callable or path
    device : torch.device

    Returns
    -------
    dict
        The new tensors by their ids, in the order of the old.
    """
    source = TensorFile(values).read if isinstance(values, str | Path) else _from_function(values)
    names: dict[int, list[str]] = {}
    module = captured.model.module
    for name, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        names.setdefault(id(tensor), []).append(name)
    new: dict[int, torch.Tensor] = {}
    for key, tensor in wanted.items():
        if key in names:
            made = source(names[key], tensor) if key in read else torch.empty(tensor.shape, dtype=tensor.dtype)
            made = made.detach().to(device, tensor.dtype)
            new[key] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    for owner in [*module.modules(), *captured.program.module.modules()]:
        for rows in (owner._parameters, owner._buffers, owner.__dict__):
            _replace(rows, new)
    return {id(new[key]) if key in new else key: new.get(key, tensor) for key, tensor in wanted.items()}


def _from_function(values: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[list[str], torch.Tensor], Any]:
    return lambda names, tensor: values(names[0], tensor)


def _replace(rows: dict[str, Any], new: Mapping[int, torch.Tensor]) -> None:
    for name, value in rows.items():
        if isinstance(value, torch.Tensor) and id(value) in new:
            rows[name] = new[id(value)]
