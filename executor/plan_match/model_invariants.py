"""Is the model still what was captured? Asked before each step, of all that a loop may change beside values.

Which parameters train, their shapes, modes of modules; whether parameters, buffers and modules are the same objects;
what code reads beside them (`costmodel.capture.attributes`); hooks of modules that a stage runs as they were captured.
A captured program holds these as they were, so that a change would train something else in silence: it is refused, by
each rank that sees it before it waits for another, and by all others with it. Leaves out changes of values in place.
"""

from collections.abc import Mapping
from operator import is_
from typing import Any

import torch
from torch import nn

from costmodel.capture.attributes import Attributes
from costmodel.errors import DoesNotMatch
from executor.context import RankContext
from executor.model.whole_model_guard import WholeVector
from executor.stages.stage import Stage
from executor.worker import Worker

_ANEW = "close the pipeline, then profile, plan and start the model as it is"
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_NOT_TRACED = tuple(kind for kind in _HOOKS if kind != "_forward_hooks")
"""A forward hook on all modules is part of what is captured, inside of the module's call."""


class ModelInvariants:
    """What was captured of a model.

    Whether parameters train is looked at of those of other ranks' stages too: all ranks refuse alike. Shapes are of
    this rank's parameters, hooks of the modules that its stages run as they were captured.

    Parameters
    ----------
    worker : Worker
        Connected. Where a stage is divided, other parameters stand in place of the model's, by whoever divides it.
    attributes : Attributes
        What the model's code reads.
    vector : WholeVector or None
        Of a model that the pipeline has taken.
    """

    def __init__(self, worker: Worker, attributes: Attributes, vector: WholeVector | None) -> None:
        module, replaces, self._vector = worker.capture.model.module, bool(worker.divided.views), vector
        left = modules_left(worker.context, worker.stages)
        self._modules = [(name, m, m.training) for name, m in module.named_modules()]
        self._named = [(name, p, p.requires_grad) for name, p in module.named_parameters()]
        self._shaped = [(name, p, tuple(p.shape)) for name, p in worker.parameters.items()]
        if replaces:  # whoever divides a stage may have given its modules other code
            attributes.leave_out(set())
        self._attributes, self._left = attributes, [(path, module.get_submodule(path)) for path in left]
        self._num_hooks = [_num_hooks(module) for _, module in self._left]
        self._global_hooks = _global_hooks(_HOOKS) if left else []
        kinds = ("_modules",) if replaces else ("_modules", "_buffers", "_parameters")
        self._places = [(name, kind, getattr(m, kind)) for name, m in module.named_modules() for kind in kinds]
        self._places = [row for row in self._places if row[2]]
        self._objects = self._now()

    def check(self) -> None:
        """Refuse a model that has changed.

        Raises
        ------
        DoesNotMatch
            Names the first thing that is not as it was.
        UsageError
            When parameters were filled from a vector of the whole model.
        """
        for name, parameter, trains in self._named:
            if parameter.requires_grad is not trains:
                raise DoesNotMatch(
                    f"the parameter {name!r} {'trained' if trains else 'was frozen'} when the model was captured and "
                    f"{'is frozen' if trains else 'trains'} now: {_ANEW}"
                )
        for name, parameter, shape in self._shaped:
            if parameter.shape != shape:
                raise DoesNotMatch(
                    f"the parameter {name!r} had the shape {list(shape)} when the model was captured and has "
                    f"{list(parameter.shape)} now: {_ANEW}"
                )
        now = self._now()
        if len(now) != len(self._objects) or not all(map(is_, now, self._objects)):
            raise DoesNotMatch(
                f"{self._replaced()} is another object than when the model was captured, and stages run what was "
                f"there: change its values in place, or {_ANEW}"
            )
        for name, then, current in self._attributes.changed():
            raise DoesNotMatch(
                f"{name} was {then} when the model was captured and is {current} now, and the captured "
                f"program holds the former: give what changes to the model as an input or a buffer, or {_ANEW}"
            )
        for (path, module), number in zip(self._left, self._num_hooks, strict=True):
            if _num_hooks(module) != number:
                raise DoesNotMatch(_hook_words(path, module, "hooks have come or gone on it since"))
        if self._left and _global_hooks(_HOOKS) != self._global_hooks:
            raise DoesNotMatch(
                "hooks on all modules (torch.nn.modules.module.register_module_...) have come or gone since the model "
                f"was captured, and do not run on {self._left[0][0] or 'the model itself'!r}, which its stage runs as "
                f"it was captured: leave them as they were, hook single modules, or {_ANEW}"
            )
        if self._vector is not None:
            self._vector.check()

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

    def _now(self) -> list[Any]:
        return [value for _, _, found in self._places for value in found.values()]

    def _replaced(self) -> str:
        """Return what has been replaced, for people."""
        then = iter(self._objects)
        for path, kind, found in self._places:
            for name, value in found.items():
                if value is not next(then, None):
                    what = kind.strip("_").removesuffix("s")
                    return f"the {what} {f'{path}.{name}' if path else name!r}"
        return "a module that is gone"


def modules_left(context: RankContext, stages: Mapping[int, Stage]) -> dict[str, str]:
    """Return the modules of which a rank's stages run something and that they do not call, with the reason."""
    operators, found = context.capture.groups, dict[str, str]()
    for index, stage in stages.items():
        for name in context.plan.stages[index].operators:
            names = operators[name].module.split(".") if name in operators and operators[name].module else []
            for path in (".".join(names[:length]) for length in range(len(names) + 1)):
                if path not in found and not stage.part.calls_module(path):
                    found[path] = stage.part.left.get(path, "what goes into it is hidden, or it recomputes by itself")
    return found


def check_hooks(module: nn.Module, left: Mapping[str, str]) -> None:
    """Refuse hooks on modules that a stage does not call but runs as they were captured.

    Those of torch's own (weight norm and the like) compute weights, which the program does as well.

    Raises
    ------
    DoesNotMatch
    """
    for path, reason in left.items():
        inner = module.get_submodule(path)
        if _num_hooks(inner):
            raise DoesNotMatch(_hook_words(path, inner, reason))
    if left and _global_hooks(_HOOKS_NOT_TRACED):
        raise DoesNotMatch(
            "there are pre-hooks or backward hooks on all modules (torch.nn.modules.module.register_module_...), which "
            f"run twice or not at all where a stage runs modules as they were captured ({next(iter(left.values()))}): "
            "remove them, or hook single modules that lie in one stage whole"
        )


def check_surroundings(device_type: str) -> None:
    """Refuse a step within `torch.autocast`: stages compute as they were captured, and a plain loop would not.

    Raises
    ------
    DoesNotMatch
    """
    if torch.is_autocast_enabled(device_type):
        raise DoesNotMatch(
            "the step is taken within torch.autocast, of which stages see nothing: leave the block, and give "
            "autocast= to the pipeline, as its plan must say"
        )


def check_storages(module: nn.Module) -> None:
    """Refuse a parameter whose memory another parameter or a buffer shares: stages have copies of their own.

    One object under several names is shared as torch shares it.

    Raises
    ------
    DoesNotMatch
    """
    rows: dict[int, list[tuple[int, int, str, torch.Tensor]]] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.layout is torch.strided and not tensor.is_meta and tensor.numel():
            first = int(tensor.storage_offset()) * tensor.element_size()
            reach = sum((int(size) - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            row = first, first + reach * tensor.element_size(), name, tensor
            rows.setdefault(tensor.untyped_storage().data_ptr(), []).append(row)
    for found in rows.values():
        found.sort(key=lambda row: row[:3])
        for number, (_, last, known, one) in enumerate(found):
            for start, _, name, other in found[number + 1 :]:
                if start > last:
                    break
                trains = isinstance(one, nn.Parameter) or isinstance(other, nn.Parameter)
                if trains and _meet(one, other):
                    raise DoesNotMatch(
                        f"{name!r} lies in the memory of {known!r}, and stages on several ranks would train two "
                        f"copies: tie them as one object ({name} = {known}), or give each its own memory"
                    )


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors in one storage have an element in common."""
    if one.dtype != other.dtype:
        return True
    places = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    places.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(places.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def _num_hooks(module: nn.Module) -> int:
    found = (hook for kind in _HOOKS for hook in getattr(module, kind).values())
    return sum(not _is_torchs(hook) for hook in found)


def _global_hooks(kinds: tuple[str, ...]) -> list[Any]:
    """Return the hooks on all modules; torch's own look on and change nothing."""
    found = (hook for kind in kinds for hook in getattr(nn.modules.module, f"_global{kind}").values())
    return [hook for hook in found if not str(getattr(hook, "__module__", "")).startswith("torch.")]


def _is_torchs(hook: Any) -> bool:
    return str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.nn.utils")


def _hook_words(path: str, module: nn.Module, reason: str) -> str:
    kinds = ", ".join(kind.strip("_").replace("_", " ") for kind in _HOOKS if getattr(module, kind)) or "hooks"
    return (
        f"the module {path or type(module).__name__!r} has {kinds} that do not run, for its stage runs it as it was "
        f"captured ({reason}): remove them, hook a module that lies in one stage whole, or pin it together"
    )
