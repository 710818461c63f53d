"""Loading a training model from ``module:function`` or ``zoo:NAME[:small]``, and checking what that returns.

Leaves out what the model computes (`capture` finds that) and how its batch is cut (`batches`).
"""

import importlib
import inspect
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from costmodel import zoo
from costmodel.capture.batches import (
    TARGETS,
    Split,
    TrainingModel,
    ambiguous,
    as_trained,
    batched_dimensions,
    describe,
    given,
    move,
    split_batch,
    take,
)
from costmodel.errors import InvalidInput, PenstockError, UsageError

__all__ = ["TrainingModel", "batched_dimensions", "explain", "load_model", "move", "running", "split_batch", "take"]


def load_model(spec: str, microbatch_size: int | None = None, seed: int = 0, sequence: int = 0) -> TrainingModel:
    """Import a model's function, call it and check what it returns.

    Parameters
    ----------
    spec : str
        ``module:function``, importable from the working folder or PYTHONPATH, ``zoo:NAME[:small]``, or a Hugging Face
        config.json (`costmodel.capture.hugging_face`).
    microbatch_size : int, optional
        Samples wanted. Given to the function when it has a parameter ``batch``; otherwise its samples
        are cut to that number, or repeated when there are fewer. Default: what the function makes.
    seed : int
        Seeds torch before the call, so that every rank builds the same parameters.
    sequence : int
        Tokens of a sample, given to the function's parameter ``sequence``; 0 for what the function makes.

    Raises
    ------
    UsageError
        When the spec names nothing that can be imported and called, or the function has no parameter ``sequence``.
    InvalidInput
        When the function fails or returns something else than `docs/guide.md` says.
    """
    function = _find(spec)
    parameters = inspect.signature(function).parameters
    accepts_batch = "batch" in parameters
    sized = accepts_batch and microbatch_size is not None
    arguments = {"batch": microbatch_size} if sized else {}
    if sequence and "sequence" not in parameters:
        raise UsageError(
            f"--sequence {sequence}: the function {spec!r} has no parameter 'sequence', so its samples are as long as "
            "it makes them; leave --sequence out, or give the function the parameter"
        )
    arguments |= {"sequence": sequence} if sequence else {}
    torch.manual_seed(seed)
    try:
        returned = function(**arguments)
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{spec}: the function fails with {explain(error)}") from None
    default = getattr(parameters.get("batch"), "default", None) if accepts_batch else None
    model = _checked(spec, returned, microbatch_size if sized else default)
    if accepts_batch and (ambiguous(model) or _cut_in_part(model)):
        model = replace(model, split={**_of_two_sizes(partial(function, **arguments), model), **model.split})
    _refuse_uncut(model)
    if microbatch_size is not None and model.batch != microbatch_size:
        model = take(model, microbatch_size)
    return model


def _of_two_sizes(function: Callable[..., Any], model: TrainingModel) -> dict[str | int, Split]:
    """Return which dimension of each input is as long as the batch at two batches, from a second call on `meta`.

    Nothing where the function does not run there, or an input's tensors are not alike.
    """
    numbers, state = random.getstate(), torch.get_rng_state()
    try:
        with torch.device("meta"):
            other = _checked(model.name, function(batch=model.batch + 1), model.batch + 1)
    except Exception:  # whatever it is, nothing is known then, and the caller asks for split=
        return {}
    finally:
        random.setstate(numbers)
        torch.set_rng_state(state)
    found: dict[str | int, Split] = {}
    for key, value in given(model).items():
        pairs = zip(pytree.tree_leaves(value), pytree.tree_leaves(given(other).get(key)), strict=False)
        moved = {_moved(a, b, model.batch) for a, b in pairs if isinstance(a, torch.Tensor)}
        if len(moved) == 1:
            found[key] = moved.pop()
    return found


def _cut_in_part(model: TrainingModel) -> bool:
    """Whether some inputs' tensors are as long as the batch, and some are not: one may be so by chance."""
    leaves = (leaf for key, value in given(model).items() if key != TARGETS for leaf in pytree.tree_leaves(value))
    return len({leaf.shape[0] == model.batch for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()}) > 1


def _refuse_uncut(model: TrainingModel) -> None:
    if all(dimension is None for dimension in batched_dimensions(model)):
        raise InvalidInput(
            f"{model.name}: no input tensor has the batch ({model.batch}) as its first dimension; say by 'split' where "
            "it is, or how they are cut (of a batch of graphs, say, features and edges by functions of (value, k, n))"
        )


def _moved(one: torch.Tensor, other: Any, batch: int) -> int | None:
    """Return the dimension that is the batch in one tensor and one longer in the other."""
    lengths = getattr(other, "shape", one.shape)
    pairs = enumerate(zip(one.shape, lengths, strict=False))
    return next((i for i, (a, b) in pairs if a == batch and b == batch + 1), None)


@contextmanager
def running(name: str) -> Iterator[None]:
    """Turn an error of the user's model or loss, as it runs on its own inputs, into `InvalidInput` with the place."""
    try:
        yield
    except (PenstockError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InvalidInput(
            f"{name}: the model or its loss fails on its own inputs with {explain(error)}; run it once by hand"
        ) from None


def explain(error: BaseException) -> str:
    """Return an error of the user's code in one line: its type, first line of text and place."""
    text = str(error).strip().split("\n")[0]
    frames = traceback.extract_tb(error.__traceback__)
    ours = tuple(os.path.join(os.path.dirname(os.path.dirname(__file__)), room) for room in ("capture", "profiling"))
    own = [
        f
        for f in frames
        if "site-packages" not in f.filename and not f.filename.startswith(ours) and "<" not in f.filename
    ]
    place = f" at {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {text}{place}"


def _find(spec: str) -> Callable[..., Any]:
    if spec.endswith(".json"):
        from costmodel.capture.hugging_face import build

        return partial(build, spec)
    where, _, name = (zoo.locate(spec) if spec.startswith("zoo:") else spec).partition(":")
    if not where or not name:
        raise UsageError(
            f"the model {spec!r} is neither module:function nor zoo:NAME[:small] (zoo names: {', '.join(zoo.NAMES)}) "
            "nor a config.json"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _import(spec, where)
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not (inspect.isroutine(function) or inspect.isclass(function) or isinstance(function, partial)):
        known = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        raise UsageError(
            f"the module {where!r} has no function {name!r}; it has {', '.join(known) or 'no function at all'}"
        )
    found: Callable[..., Any] = function
    return found


def _import(spec: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and (where == error.name or where.startswith(error.name + ".")):
            raise UsageError(
                f"the model {spec!r}: there is no module {error.name!r} in the working folder or on PYTHONPATH; "
                "give module:function without .py"
            ) from None
        raise InvalidInput(f"{spec}: the module {where!r} needs {error.name!r}, which is not installed") from None
    except (Exception, SystemExit) as error:  # a script that parses its own arguments ends here
        raise InvalidInput(f"{spec}: the module {where!r} cannot be imported: {explain(error)}") from None


_SHAPES = "(model, inputs, loss), (model, inputs, targets, loss) or a dict with the keys model, inputs, loss"


def _checked(spec: str, returned: Any, batch: Any) -> TrainingModel:
    """Turn what the function returned into a `TrainingModel`."""
    fields = _fields(spec, returned)
    module, inputs, loss = fields["model"], fields["inputs"], fields["loss"]
    compiled = _compiled(module)
    module = getattr(module, "_orig_mod", module)  # what torch.compile was given: it hides the names and takes minutes
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"{spec}: the model is {describe(module)}; it must be a torch.nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise InvalidInput(
            f"{spec}: the model is TorchScript, which hides its operators; give the module it was made of"
        )
    _refuse_cuda_graphs(spec, module)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, list | tuple | dict):
        raise InvalidInput(
            f"{spec}: the inputs are {describe(inputs)}; they must be a tuple (positional) or a dict (keyword)"
        )
    if not callable(loss):
        raise InvalidInput(f"{spec}: the loss is {describe(loss)}; it must be a function of the output (and targets)")
    own = [name for name, p in loss.named_parameters() if p.requires_grad] if isinstance(loss, nn.Module) else []
    if own:
        raise InvalidInput(
            f"{spec}: the loss has parameters of its own ({own[0]}); only the model's are trained, move them there"
        )
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, dict) else (tuple(inputs), {})
    split = fields.get("split") or {}
    _check_split(spec, split, args, kwargs)
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        batch = _infer_batch(spec, args, kwargs, split)
    model = TrainingModel(
        spec, as_trained(module), args, kwargs, fields.get(TARGETS), TARGETS in fields, loss, dict(split), batch
    )
    if compiled:
        model = replace(model, remark=f"torch.compile is left out: {compiled} is taken as plain modules, uncompiled")
    return model


def _compiled(module: Any) -> str:
    """Return what of a model torch.compile was given, as far as its modules tell; empty for a plain one."""
    if not isinstance(module, nn.Module):
        return ""
    marked = {name: hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for name, m in module.named_modules()}
    names = [name or "the model" for name, found in marked.items() if found]
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)


def _refuse_cuda_graphs(spec: str, module: nn.Module) -> None:
    for name, inner in module.named_modules():
        forward = vars(inner).get("forward")
        if getattr(forward, "__qualname__", "").startswith("make_graphed_callables"):
            raise InvalidInput(
                f"{spec}: {name or 'the model'} is a CUDA graph (torch.cuda.make_graphed_callables), whose kernels "
                "belong to no operator; give the module as it was before, and graph stages when they run"
            )


def _fields(spec: str, returned: Any) -> dict[str, Any]:
    if isinstance(returned, dict):
        unknown = sorted(set(returned) - {"model", "inputs", TARGETS, "loss", "split"})
        missing = [key for key in ("model", "inputs", "loss") if key not in returned]
        if missing or unknown:
            wrong = f"misses {', '.join(missing)}" if missing else f"has the unknown key {', '.join(map(str, unknown))}"
            raise InvalidInput(f"{spec}: the returned dict {wrong}; it may hold model, inputs, targets, loss, split")
        return dict(returned)
    if isinstance(returned, tuple | list) and len(returned) in (3, 4):
        keys = ("model", "inputs", "loss") if len(returned) == 3 else ("model", "inputs", TARGETS, "loss")
        return dict(zip(keys, returned, strict=True))
    raise InvalidInput(f"{spec}: the function returned {describe(returned)}; it must return {_SHAPES}")


def _check_split(spec: str, split: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if not isinstance(split, dict):
        raise InvalidInput(f"{spec}: split is {describe(split)}; it must be a dict of input name or position")
    known: list[str | int] = [*range(len(args)), *kwargs, TARGETS]
    for key, how in split.items():
        if key not in known:
            raise InvalidInput(f"{spec}: split names the input {key!r}; the inputs are {', '.join(map(str, known))}")
        if how is not None and not callable(how) and (isinstance(how, bool) or not isinstance(how, int)):
            raise InvalidInput(
                f"{spec}: split[{key!r}] is {how!r}; it must be a dimension, None (whole) or a function(value, k, n)"
            )


def _infer_batch(spec: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], split: Mapping[str | int, Split]) -> int:
    """Return the length, along its batch dimension, of the first input tensor that has one."""
    named: list[tuple[str | int, Any]] = [*enumerate(args), *kwargs.items()]
    for key, value in named:
        how = split.get(key, 0)
        if how is None or callable(how):
            continue
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.dim() > how and leaf.shape[how] > 0:
                return int(leaf.shape[how])
    found = ", ".join(dict.fromkeys(describe(value) for _, value in named)) or "nothing"
    raise InvalidInput(
        f"{spec}: no input is a tensor with a batch dimension (found {found}); at least one is needed: of a batch of "
        "graphs, say, give features and edges as tensors, and by 'split' how each is cut"
    )
