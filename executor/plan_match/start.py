"""From a model to a connected rank: captured, matched with the plan without a word to others, then joined with them.

What one rank refuses before the ranks meet it tells the others, and all refuse it alike. Leaves out what is asked
before there is a model (`options`), and steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from costmodel.capture.attributes import Attributes
from costmodel.capture.batches import TrainingModel, check_cut
from costmodel.capture.capture import Capture
from executor.communication.groups import ProcessGroups
from executor.communication.lifecycle import GroupLifecycle
from executor.communication.watch import START
from executor.context import RankContext
from executor.gradients.optimizer import SteppedOptimizers, has_opt
from executor.model.capturing import aimed_at, capture_surely, noting_kept
from executor.model.holding import tensors_read
from executor.model.whole_model_guard import WholeVector, refuse_calls
from executor.observe.out_of_memory import explaining_out_of_memory
from executor.plan_match.agreement import agree, held, held_of, telling_others
from executor.plan_match.matching import check_gate, place_in
from executor.plan_match.model_invariants import ModelInvariants, check_hooks, check_storages, modules_left
from executor.plan_match.options import RunOptions
from executor.plan_match.precision import with_precision
from executor.worker import Worker
from planner.plan import Plan


@dataclass(frozen=True, slots=True)
class ConnectedRank:
    """One rank of a pipeline whose ranks have met.

    Attributes
    ----------
    worker : Worker
    groups : ProcessGroups
    lifecycle : GroupLifecycle
    invariants : ModelInvariants
    stepped : SteppedOptimizers or None
        Of a plan without OPT.
    """

    worker: Worker
    groups: ProcessGroups
    lifecycle: GroupLifecycle
    invariants: ModelInvariants
    stepped: SteppedOptimizers | None


def start(
    plan: Plan, model: TrainingModel | Capture, options: RunOptions, device: torch.device, group: Any
) -> ConnectedRank:
    """Match a model with a plan and connect the ranks; collective.

    Raises
    ------
    DoesNotMatch
    ReadableButWrong
    """
    rank, num_ranks = place_in(group)
    with telling_others(options.timeout_s, group), explaining_out_of_memory(plan, rank, device):
        vector = WholeVector(model.module) if isinstance(model, TrainingModel) else None
        captured, attributes, kept = _captured(plan, model, options)
        own = held(plan, captured, options.told())
        if isinstance(model, TrainingModel):
            captured = aimed_at(captured, device)
        context = RankContext(plan, captured, rank, device)
        worker = Worker(context, options, keeps_model=isinstance(model, Capture), kept=kept)
        check_hooks(captured.model.module, modules_left(worker.context, worker.stages))
    groups = ProcessGroups(rank, num_ranks, options.timeout_s, group)
    lifecycle = GroupLifecycle(groups, worker.disconnect)
    groups.watch.enters(START)
    try:
        agree(groups, own)
        with explaining_out_of_memory(plan, rank, device):
            worker.connect(groups)
        agree(groups, held_of(worker.optimizer.optimizer if worker.optimizer else None))
    except BaseException as error:
        lifecycle.fail(error, listens=False)
        raise
    groups.watch.rests()
    refuse_calls(captured.model.module, tensors_read(worker.capture, worker.capture.operators))
    if options.emulate:
        worker.observe(emulates=True)
    stepped = None
    if not has_opt(plan):
        everywhere = {name for names in worker.context.owned for name in names}
        stepped = SteppedOptimizers(worker.parameters.values(), parts=len(worker.parameters) < len(everywhere))
        lifecycle.at_end = stepped.take  # its hook is on all optimizers of the process, and would outlive the pipeline
    return ConnectedRank(worker, groups, lifecycle, ModelInvariants(worker, attributes, vector), stepped)


def _captured(
    plan: Plan, model: TrainingModel | Capture, options: RunOptions
) -> tuple[Capture, Attributes, Sequence[tuple[str, str]]]:
    """Return a model as captured, what its code reads, and what its forwards keep; found to be the plan's."""
    kept: Sequence[tuple[str, str]] = ()
    if isinstance(model, Capture):
        captured = replace(model, model=with_precision(plan, model.model))
        attributes = Attributes(captured.model.module)
    else:
        check_cut(model)
        built = with_precision(plan, model)
        with noting_kept(built.module) as kept:
            captured, attributes = capture_surely(built, plan.batch.microbatch_size, options.values is not None)
    check_gate(plan, captured)
    if len(plan.stages) > 1:
        check_storages(captured.model.module)
    return captured, attributes, kept
