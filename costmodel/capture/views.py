"""A stage as a model of the user's own class: the modules that it calls or reads, by their own names, and no others.

What a function of the user's changes in it (other modules in place of these, parameters divided) the stage then runs:
`extract` takes the view. Containers are copies, so that the model keeps its own modules; modules that are called, and
those whose parameters are read without them, are the model's. Leaves out what is changed.
"""

from collections.abc import Collection
from copy import copy

from torch import nn

from costmodel.capture.parts import Part

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def view_of(part: Part) -> nn.Module:
    """Return the view of a part with modules."""
    called = {call.path for call in part.calls}
    return _pruned(part.capture.model.module, "", called, set(part.read)) or nn.Module()


def _pruned(module: nn.Module, path: str, called: Collection[str], read: Collection[str]) -> nn.Module | None:
    """Return a module without what is neither called nor read below it; None where nothing is."""
    if path in called:
        return module
    below = f"{path}." if path else ""
    parameters = {name: p for name, p in module._parameters.items() if p is not None and f"{below}{name}" in read}
    children = {
        name: _pruned(child, f"{below}{name}", called, read)
        for name, child in module._modules.items()
        if child is not None
    }
    if not parameters and not any(child is not None for child in children.values()):
        return None
    if parameters and not children:
        return module
    view = copy(module)
    view.__dict__ |= {name: value.copy() for name, value in vars(module).items() if isinstance(value, dict)}
    view._parameters = {name: parameters.get(name) for name in module._parameters}
    drops = isinstance(module, _CONTAINERS)  # elsewhere code may ask whether a module is None
    view._modules = {name: child for name, child in children.items() if child is not None or not drops}
    return view
