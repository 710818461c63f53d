"""What ranks do behind a pipeline schedule's surface, as torchtitan's trainer does; without torchtitan."""

from copy import deepcopy
from inspect import signature
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from executor.adapters.executed_schedule import executed
from tests.support.ranks.executor_jobs import make_plan, whole_batch

STAGES = (
    ("linear", "tanh", "linear_1", "linear_2"),
    ("linear_3", "gelu", "linear_4"),
    ("mul", "linear_5", "add", "add_1", "linear_6", "loss"),
)
"""A branch with the stem, the other one, and what joins them."""
IGNORED = 3
"""How many targets count nothing."""


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """The sum over the targets, and no metrics, as torchtitan's losses give them."""
    return F.cross_entropy(output, targets, reduction="sum"), {}


def trained_behind_a_schedule(optimizer: str | None) -> dict[str, Any]:
    """Run a step and an evaluation, and return how far they are from one process, and what is held here."""
    plan = make_plan("two_branch", groups=STAGES, ranks=[(0,), (1,), (0,)], optimizer=optimizer)
    own = whole_batch("two_branch", plan)
    own.targets[:IGNORED] = -100
    inputs = dict(zip(signature(own.module.forward).parameters, own.args, strict=True))
    schedule, (part,), *ends = executed(plan, inputs)(
        deepcopy(own.module).to("meta"), training=None, device=torch.device("cpu"), loss_fn=loss_of
    )
    part.to_empty(device="cpu")
    part.load_state_dict({key: value for key, value in own.module.state_dict().items() if key in part.state_dict()})
    cut = [tensor.split(plan.batch.microbatch_size) for tensor in (*own.args, own.targets)]
    batch: dict[str, Any] = {
        "arg_mbs": list(zip(cut[0], strict=True)),
        "kwarg_mbs": [{"late": late} for late in cut[1]],
        "target_mbs": list(cut[2]),
    }
    losses: list[torch.Tensor] = []
    schedule.eval(**batch, losses=losses)
    schedule.step(**batch, losses=losses, loss_kwargs={}, return_outputs=False)
    total = loss_of(own.module(*own.args), own.targets)[0]
    mean = total / (len(own.targets) - IGNORED)
    mean.backward()
    alone = dict(own.module.named_parameters())
    found = {
        "ends": ends,
        "held": sorted({name.split(".")[0] for name, _ in part.named_parameters()}),
        "losses": [abs(float(losses[0] - total)), abs(float(losses[1] - mean))],
        "gradient": max(float((p.grad - alone[name].grad).abs().max()) for name, p in part.named_parameters()),
        "norm": float(get_total_norm([p.grad for p in part.parameters()])),
    }
    schedule.close()
    return found
