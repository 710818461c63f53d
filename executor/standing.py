"""Is the model still what was captured: which parameters train, their shapes, modes of modules. Asked before each step.

A parameter frozen, unfrozen or reshaped later would leave its captured gradients wrong, so it is refused, on each rank
that sees it before it waits for another. Leaves out modules that were put in place of others: stages hold the old ones.
"""

from collections.abc import Mapping

from torch import nn

from costmodel.capture.capture import Capture
from costmodel.errors import DoesNotMatch


class Standing:
    """What was captured of a model's parameters.

    Parameters
    ----------
    captured : Capture
        Whether its module's parameters train is looked at, those of other ranks' stages too: all ranks refuse alike.
    parameters : mapping
        This rank's, whose shapes are looked at.
    """

    def __init__(self, captured: Capture, parameters: Mapping[str, nn.Parameter]) -> None:
        self._modules = [(name, m, m.training) for name, m in captured.model.module.named_modules()]
        self._named = [(name, p, p.requires_grad) for name, p in captured.model.module.named_parameters()]
        self._shaped = [(name, p, tuple(p.shape)) for name, p in parameters.items()]

    def check(self) -> None:
        """Refuse a model that has changed.

        Raises
        ------
        DoesNotMatch
            Names the first parameter that is not as it was.
        """
        for name, parameter, trains in self._named:
            if parameter.requires_grad is not trains:
                raise DoesNotMatch(
                    f"the parameter {name!r} {'trained' if trains else 'was frozen'} when the model was captured and "
                    f"{'is frozen' if trains else 'trains'} now: close the pipeline, then profile, plan and start the "
                    "model as it is"
                )
        for name, parameter, shape in self._shaped:
            if parameter.shape != shape:
                raise DoesNotMatch(
                    f"the parameter {name!r} had the shape {list(shape)} when the model was captured and has "
                    f"{list(parameter.shape)} now: close the pipeline, then profile, plan and start the model as it is"
                )

    def check_modes(self) -> None:
        """Refuse to train modules that are not in the mode in which they were captured: stages call them.

        Raises
        ------
        DoesNotMatch
            Names the first one.
        """
        for name, module, trains in self._modules:
            if module.training is not trains:
                then, now = ("train", "eval") if trains else ("eval", "train")
                raise DoesNotMatch(
                    f"the module {name or type(module).__name__!r} was in {then} mode when the model was captured and "
                    f"is in {now} mode now, and stages call it: set it back before a step (pipe.evaluate needs no mode)"
                )
