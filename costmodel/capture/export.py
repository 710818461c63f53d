"""A training model as one flat `torch.fx` program: inputs and outputs are lists of leaves.

torch.export in non-strict mode, batch dynamic where the model allows it. Leaves out what the program's
nodes mean together: `passes` groups them into operators. Every process that captures the same model
function gets the same program, whatever its batch, because export always sees `CAPTURE_SAMPLES`.
"""

import dataclasses
import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._export.utils import _compiling_state_context
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from costmodel.capture.attention import agrees, configs_with_cache, mask_free_attention, no_cache
from costmodel.capture.batches import TrainingModel, ambiguous, batched_dimensions, take
from costmodel.capture.calls import Notes, noting_calls
from costmodel.capture.checkpoints import noting_checkpoints
from costmodel.capture.custom_functions import inference_without_gradients, opaque_custom_functions
from costmodel.capture.device_free import captured_alike
from costmodel.capture.eager import trace_eagerly
from costmodel.capture.lengths import length_dimensions
from costmodel.capture.models import explain, running
from costmodel.capture.node_names import NodeCounts
from costmodel.capture.passes import kind_of, module_path
from costmodel.errors import InvalidInput

CAPTURE_SAMPLES = 2
"""Export specialises on sizes 0 and 1; two samples are the fewest that stay dynamic."""


_Marked = tuple[fx.GraphModule, Notes, Callable[..., Any] | None]
"""An exported program with marks, the notes that they belong to, and its guards."""

_HINTS = (
    ("(data-dependent)", "masks and torch.where keep shapes and numbers free of tensor values"),
    ("data-dependent", "Python that branches on tensor values must become torch.where or torch.cond"),
    ("Python's random", "draw them by torch, in every step anew: nn.Dropout, or torch.where over torch.rand"),
    ("not a known type", "return tensors in tuples, lists or dicts, or register the type with torch.utils._pytree"),
    ("constant's list", "tensors of numbers are buffers, and gradients are taken by the step, not by the forward"),
    ("fake tensor", "a kernel of your own must be given a fake one with register_fake of torch's library module"),
    ("", "make the model's forward pass torch.export.export(model, inputs, strict=False)"),
)
"""What to change, by words of export's message; the first that fits."""


_WHERE = "in the module "
"""What begins the note on an error that says where export was."""
_WITHOUT_VALUES = (
    "One run without values ends there, too: the class reads numbers out of its inputs, or wants inputs of which a "
    "configuration does not say how large they are. Write the model as module:function, with inputs of its own"
)
_TEXT_ALONE = ", or take its text alone: the configuration's text_config as a config.json"
"""What is left for a configuration that neither export nor a trace takes."""
_LAYER_DROPS = ("layerdrop", "layer_drop", "encoder_layerdrop", "decoder_layerdrop")
"""Under what names models keep the rate at which they leave layers out."""


@dataclass(frozen=True, slots=True)
class FlatProgram:
    """A flat program and what puts the model's inputs and outputs together again.

    `module` takes the leaves of (args, kwargs) and returns the tuple of the output's leaves;
    `static_batch` is the only micro-batch size it runs at, None when it runs at any. `plan_only` says why
    the program is a trace of one eager run, that cannot be trained with; "" for an exported one. `remark` says
    what of the model the program leaves out, `counts` how its nodes were numbered. An exported one has the marks of
    `notes` between its nodes, and `guards`, which raises an AssertionError on input leaves of shapes at which the
    model would compute something else.
    """

    module: fx.GraphModule
    out_spec: pytree.TreeSpec
    static_batch: int | None
    plan_only: str = ""
    remark: str = ""
    counts: NodeCounts = dataclasses.field(default_factory=NodeCounts)
    notes: Notes | None = None
    guards: Callable[..., Any] | None = None


def export_program(model: TrainingModel, microbatch_size: int | None = None, plan_only: bool = False) -> FlatProgram:
    """Export a model; with a fixed batch of `microbatch_size` where it refuses a dynamic one.

    `plan_only` allows the eager trace where export refuses altogether.

    Raises
    ------
    InvalidInput
        When torch.export refuses the model; says why.
    """
    with noting_checkpoints() as seen:
        program = _exported(model, microbatch_size, plan_only, seen)
    return dataclasses.replace(program, remark=seen[0] if seen else "")


def _exported(
    model: TrainingModel, microbatch_size: int | None, plan_only: bool, left_out: Sequence[str]
) -> FlatProgram:
    try:
        sample = take(model, CAPTURE_SAMPLES)
        return _flat(*_export(sample, left_out, dynamic=True), model, None)
    except Exception as error:  # whatever export or the user's code raises here, it raises again below if it matters
        _refuse_ambiguous(model)
        if model.lengths:
            raise InvalidInput(
                f"{model.name}: torch.export cannot capture the model with free lengths: {_place(error)}"
                f"{explain(error)}; pad samples to one length, and leave lengths= out"
            ) from None
        fixed = model if microbatch_size is None else take(model, microbatch_size)
    try:
        return _flat(*_export(fixed, left_out, dynamic=False), model, fixed.batch)
    except Exception as error:
        reason = f"torch.export cannot capture the model: {_place(error)}{explain(error)}; {_hint(model.module, error)}"
    if not plan_only:
        raise InvalidInput(f"{model.name}: {reason}. {_what_is_left(model)}")
    try:
        alike = _compiling_state_context() if _is_on_meta(model) else nullcontext()  # choices that export makes
        with running(model.name), no_cache(configs_with_cache(model.module)), alike:
            return _flat(*trace_eagerly(fixed), None, None, model, fixed.batch, reason)
    except InvalidInput:
        if not _is_on_meta(model):
            raise
        has_text = hasattr(getattr(model.module, "config", None), "text_config")
        raise InvalidInput(f"{model.name}: {reason}. {_WITHOUT_VALUES}{_TEXT_ALONE * has_text}") from None


def _place(error: Exception) -> str:
    """Return in which module an error was met, where that is known."""
    path = _path_of(error)
    return "" if path is None else f"in {f'the module {path!r}' if path else 'the model itself'}: "


def _path_of(error: Exception) -> str | None:
    notes = [note.removeprefix(_WHERE) for note in getattr(error, "__notes__", ()) if note.startswith(_WHERE)]
    return notes[0] if notes else None


def _hint(model: nn.Module, error: Exception) -> str:
    """Return what to change: by the module that export was in, else by the words of its message."""
    path = _path_of(error)
    if path is not None:
        module = model.get_submodule(path)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is None:
            return "give its momentum a number: without one the averages need the number of batches as a value"
        owners = (module, getattr(module, "config", None))
        rate = next((key for key in _LAYER_DROPS if any(getattr(owner, key, 0) for owner in owners)), "")
        if rate:
            return f"set {rate} to 0: layers that are left out at random belong to no stage"
    return next(hint for words, hint in _HINTS if words in str(error))


def _refuse_ambiguous(model: TrainingModel) -> None:
    """Refuse to guess which tensors are cut along the batch where no program of any batch tells.

    Raises
    ------
    InvalidInput
    """
    names = ambiguous(model)
    if names:
        raise InvalidInput(
            f"{model.name}: the inputs {', '.join(names)} have more than one dimension as long as the batch "
            f"({model.batch}), and the model runs at no other batch when they are cut along the first: say by split= "
            "which dimension is the batch ({name or position: dimension, or None for what goes whole to each "
            "micro-batch}), or give the model's function a parameter 'batch'"
        )


def _is_on_meta(model: TrainingModel) -> bool:
    return any(parameter.is_meta for parameter in model.module.parameters())


def _what_is_left(model: TrainingModel) -> str:
    if _is_on_meta(model):
        return (
            "Until then it is captured from one eager run, which needs values: profile it whole, without --dry-run "
            "and --memory-limit"
        )
    return "Until then it can be profiled and planned, not run"


class _ByLeaves(nn.Module):
    """The model as a function of the leaves of its inputs: one signature for all models."""

    def __init__(self, model: nn.Module, spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.model = model
        self.spec = spec

    def forward(self, *leaves: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        output = self.model(*args, **kwargs)
        if dataclasses.is_dataclass(output) and type(output) not in pytree.SUPPORTED_NODES:
            torch.export.register_dataclass(type(output))
        return output


def _export(
    model: TrainingModel, left_out: Sequence[str], *, dynamic: bool
) -> tuple[fx.GraphModule, pytree.TreeSpec, NodeCounts, Notes, Callable[..., Any] | None]:
    leaves, spec = pytree.tree_flatten((model.args, dict(model.kwargs)))
    free = [
        {*lengths, *([] if batch is None else [batch])} if dynamic else ()
        for batch, lengths in zip(batched_dimensions(model), length_dimensions(model), strict=True)
    ]
    shapes = tuple(dict.fromkeys(sorted(row), torch.export.Dim.DYNAMIC) or None for row in free)
    wrapped = _ByLeaves(model.module, spec)

    def export() -> _Marked:
        with noting_calls(model.module, left_out) as notes:
            try:
                program = captured_alike(
                    lambda: torch.export.export(wrapped, tuple(leaves), dynamic_shapes=(shapes,), strict=False)
                )
            except Exception as error:
                if notes.open_path is not None:
                    error.add_note(f"{_WHERE}{notes.open_path}")
                raise
        module = program.module(check_guards=False)
        assert isinstance(module, fx.GraphModule)  # noqa: S101 - what torch documents
        guards = getattr(program.module(), "_guards_fn", None) if model.lengths else None
        return module, notes, guards

    with _quiet(), no_cache(configs_with_cache(model.module)), opaque_custom_functions(), inference_without_gradients():
        with mask_free_attention(model) as changes:
            found = _unless_refused(export) if changes else export()
        if found is None or (changes and not agrees(model, found[0])):
            found = export()
    module, notes, guards = found
    _check_numbers(module, notes)
    assert module._out_spec is not None  # noqa: S101 - what export makes
    return module, module._out_spec, notes.counts, notes, guards


def _unless_refused(export: Callable[[], _Marked]) -> _Marked | None:
    """Return what export makes, None where it refuses: some models cannot do without the masks that they make."""
    try:
        return export()
    except Exception:  # whatever it is, export says it again with the masks if it matters
        return None


def _check_numbers(module: fx.GraphModule, notes: Notes) -> None:
    """Refuse numbers that are not the same in every step: read from tensors, or drawn by Python.

    Raises
    ------
    ValueError
        Naming the first such call and its place in the user's code.
    """
    if notes.drawing is not None:
        error = ValueError("the model draws numbers from Python's random module, once and for all when it is captured")
        error.add_note(f"{_WHERE}{notes.drawing}")
        raise error
    for node in module.graph.nodes:
        values = pytree.tree_leaves(node.meta.get("val"))
        if any(free_unbacked_symbols(v) for v in values if isinstance(v, torch.Tensor | torch.SymInt | torch.SymFloat)):
            lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
            place = f" at {Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else ""
            error = ValueError(
                f"a size or number is read from tensor values by {kind_of([node])} (data-dependent){place}"
            )
            error.add_note(f"{_WHERE}{module_path(node)}")
            raise error


def _flat(
    module: fx.GraphModule,
    out_spec: pytree.TreeSpec,
    counts: NodeCounts,
    notes: Notes | None,
    guards: Callable[..., Any] | None,
    model: TrainingModel,
    static_batch: int | None,
    plan_only: str = "",
) -> FlatProgram:
    """Take the pytree handling out of the module: leaves in, tuple of leaves out; name the inputs."""
    graph = module.graph
    graph.set_codegen(fx.graph.CodeGen())
    output = graph.output_node()
    output.args = (tuple(pytree.tree_leaves(output.args[0])),)
    for node, name in zip(graph.find_nodes(op="placeholder"), _input_names(model), strict=True):
        node._rename(name)
        node.target = node.name
    module.recompile()
    return FlatProgram(module, out_spec, static_batch, plan_only, counts=counts, notes=notes, guards=guards)


def _input_names(model: TrainingModel) -> list[str]:
    """Return a name for each leaf of (args, kwargs): its argument's, numbered where that has several."""
    parameters = list(inspect.signature(model.module.forward).parameters.values())
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    positional += [f"input_{i}" for i in range(len(positional), len(model.args))]
    found = []
    for name, value in [*zip(positional, model.args, strict=False), *model.kwargs.items()]:
        count = len(pytree.tree_leaves(value))
        found += [name] if count == 1 else [f"{name}_{i}" for i in range(count)]
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep export's own warnings, logs and half-made graphs from the user's screen; its errors are raised."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
