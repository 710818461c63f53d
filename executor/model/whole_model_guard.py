"""The model behind a pipeline's back: calls of it, and values put into it, where this rank holds a part of it alone.

Leaves out what is read from it parameter by parameter, which is whole where it is not empty.
"""

from collections.abc import Collection
from functools import partial

from torch import nn

from costmodel.errors import UsageError


def refuse_calls(module: nn.Module, read: Collection[int]) -> None:
    """Let parts of a model refuse to be called of which a pipeline has emptied a parameter or buffer.

    Those are `read` by their ids: what no forward reads may be away from parts that stages call, too.
    """
    for path, part in module.named_modules():
        own = {**part._parameters, **part._buffers}
        gone = [
            name for name, tensor in own.items() if tensor is not None and tensor.shape == (0,) and id(tensor) in read
        ]
        if gone:
            part.register_forward_pre_hook(partial(_refuse_call, f"{path}.{gone[0]}".lstrip(".")))


def _refuse_call(name: str, part: nn.Module, _: object) -> None:
    tensor = {**part._parameters, **part._buffers}.get(name.rpartition(".")[2])
    if tensor is not None and tensor.shape == (0,):
        raise UsageError(
            f"{name!r} is not in this model any more: a pipeline has taken the model, and this rank holds its own "
            "stages' parameters alone: take pipe.evaluate(inputs, targets, metrics=...), or load pipe.state_dict() "
            "into a model that is built anew"
        )


class WholeVector:
    """Whether `vector_to_parameters` has dealt a vector of the whole model to the parameters that this rank holds.

    Parameters
    ----------
    module : torch.nn.Module
        Before a pipeline takes it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._number = module, _num_values(module)
        self._first: nn.Parameter | None = None

    def check(self) -> None:
        """Refuse such a vector: it counts from the first parameter on, and those of other ranks are empty.

        Raises
        ------
        UsageError
        """
        if self._first is None:
            self._first = next((parameter for parameter in self._module.parameters() if parameter.numel()), None)
        own = self._first
        if own is None or own.is_meta or own.untyped_storage().nbytes() != self._number * own.element_size():
            return
        if own.numel() < _num_values(self._module) < self._number:
            raise UsageError(
                f"the parameters were filled from a vector of {self._number} values, those of the whole model, and "
                f"this rank holds {_num_values(self._module)} of them: give values by name (pipe.load_state_dict)"
            )


def _num_values(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
