"""The precision that a plan was made for: the model trains in it, or the plan is refused.

float16 needs its losses scaled, which the executor does not do: refused by name. Leaves out what a model itself casts.
"""

from dataclasses import replace

import torch

from costmodel.capture.batches import TrainingModel
from costmodel.errors import DoesNotMatch
from planner.plan import Plan

DTYPES = ("float64", "float32", "bfloat16")


def planned_dtype(plan: Plan) -> torch.dtype | None:
    """Return the type of parameters and inputs that a plan was made for; None where it does not say.

    Raises
    ------
    DoesNotMatch
        When it is none that the executor trains in.
    """
    name = plan.training.dtype
    return _known(name, "is made for") if name else None


def with_precision(plan: Plan, model: TrainingModel) -> TrainingModel:
    """Return a model as the plan trains it: under its autocast, with parameters of its type.

    Raises
    ------
    DoesNotMatch
        When the model's parameters have another type, it is to train under another autocast, or in float16.
    """
    planned, autocast = planned_dtype(plan), plan.training.autocast
    found = {p.dtype for p in model.module.parameters() if p.is_floating_point()}
    for dtype in (*found, *([model.autocast] if model.autocast else ())):
        if dtype is torch.float16:
            _known("float16", "trains in")
    if planned is not None and found - {planned}:
        names = ", ".join(sorted(map(_name, found)))
        raise DoesNotMatch(
            f"the plan is made for {_name(planned)}, and the model has parameters of {names}: give "
            f"model.to(torch.{_name(planned)}), or profile the model with --dtype as it trains"
        )
    if not plan.training.dtype and not autocast:
        return model
    wanted = _known(autocast, "casts to") if autocast else None
    if model.autocast not in (None, wanted):
        raise DoesNotMatch(
            f"the plan is made {f'under autocast to {autocast}' if autocast else 'without autocast'}, and the model is "
            f"to train under autocast to {_name(model.autocast)}: profile it with --autocast as it trains"
        )
    return replace(model, autocast=wanted)


def _known(name: str, what: str) -> torch.dtype:
    if name not in DTYPES:
        why = "its losses would have to be scaled, which the executor does not do" if name == "float16" else "unknown"
        raise DoesNotMatch(f"the plan {what} {name}: {why}; allowed are {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
