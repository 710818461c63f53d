"""What a gradient may be, and who may hook into it: refused at the start where a rank sees a part of it alone.

Hooks on a parameter's gradient run in the backward of a stage. Where several stages share the parameter each has its
own part of the gradient, and where a stage divides it torch takes hooks of the whole one no more. Sparse gradients stay
in their stage: sums over ranks are of dense ones. Leaves out hooks on modules, which are called as they are.
"""

from collections.abc import Mapping

import torch

from costmodel.capture.capture import Capture
from costmodel.capture.draws import named_arguments
from costmodel.capture.split_calls import is_hooked
from costmodel.errors import DoesNotMatch
from executor.context import RankContext
from executor.gradients.reduction import stages_of_parameters

_SPARSE = (torch.ops.aten.embedding.default, torch.ops.aten.embedding_bag.default,
           torch.ops.aten.embedding_bag.padding_idx)  # fmt: skip


def without_whole_gradient(context: RankContext) -> dict[str, str]:
    """Return the parameters whose gradients no hook of the user's sees whole, with the reason."""
    stages = stages_of_parameters(context.owned)
    tied = {name: f"the stages {' and '.join(map(str, s))} share it" for name, s in stages.items() if len(s) > 1}
    divided = {
        name: f"stage {index} divides it"
        for index, names in enumerate(context.owned)
        for name in names
        if context.plan.stages[index].config.divides
    }
    return tied | divided


def check_gradient_hooks(
    context: RankContext, watched: Mapping[str, str], parameters: Mapping[str, torch.Tensor]
) -> None:
    """Refuse hooks on gradients of some parameters, those of other ranks too: all ranks refuse alike.

    Parameters
    ----------
    context : RankContext
    watched : mapping of str to str
        Name of a parameter -> why no hook sees its gradient.
    parameters : mapping
        This rank's, as they are now.

    Raises
    ------
    DoesNotMatch
        Names the first parameter.
    """
    everywhere = [(name, context.capture.parameter(name)) for name in watched]
    for name, parameter in (*everywhere, *parameters.items()):
        if name in watched and is_hooked(parameter):
            raise DoesNotMatch(
                f"the parameter {name!r} has a hook on its gradient, and {watched[name]}, so no rank's backward has it "
                "whole: change gradients between pipe.step and your optimizer's step (a plan made with "
                "--optimizer none), or plan so that one undivided stage has the parameter"
            )


def check_sparse(context: RankContext, asks_norm: bool) -> None:
    """Refuse sparse gradients that several ranks would have to sum, or whose norm is asked for.

    Raises
    ------
    DoesNotMatch
        Names the first parameter.
    """
    stages = stages_of_parameters(context.owned)
    for name in _sparse_parameters(context.capture):
        ranks = {rank for stage in stages.get(name, ()) for rank in context.plan.stages[stage].ranks}
        if len(ranks) > 1:
            raise DoesNotMatch(
                f"the parameter {name!r} has sparse gradients, and the ranks {sorted(ranks)} would have to sum them: "
                "make the embedding with sparse=False, or plan so that one rank alone has it (--data 1, or a pin)"
            )
        if asks_norm:
            raise DoesNotMatch(
                f"the parameter {name!r} has sparse gradients, whose norm torch does not take: make the embedding with "
                "sparse=False, or leave max_norm=, gradient_norm= and skip_nonfinite= out"
            )


def _sparse_parameters(captured: Capture) -> list[str]:
    """Return the names of the trainable parameters that have sparse gradients."""
    found: dict[str, None] = {}
    for group in captured.groups.values():
        for node in group.nodes:
            if node.target in _SPARSE and named_arguments(node.target, node.args, node.kwargs).get("sparse"):
                found |= dict.fromkeys(n for n in group.parameters if captured.parameter(n).requires_grad)
    return list(found)
