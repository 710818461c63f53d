"""Evaluation on one rank: the forwards of the plan's order in eval mode, with what they write forgotten.

Leaves out how a part computes in eval mode (`evaluation`), and which batch is loaded.
"""

from collections.abc import Mapping

from costmodel.capture.parts import extract
from executor.context import RankContext
from executor.gradients.averages import BufferSync
from executor.gradients.losses import LossSum, StepLoss, own_loss
from executor.program import Program
from executor.stages.evaluation import Metric, Metrics, evaluated_part
from executor.stages.parallelize import DividedStages
from executor.stages.stage import Stage
from executor.stages.stage_builder import StageBuilder
from simulator.actions import Kind

FORWARDS = frozenset({Kind.F, Kind.SEND_F, Kind.RECV_F})


def evaluated_stages(builder: StageBuilder, stages: Mapping[int, Stage], divided: DividedStages) -> dict[int, Stage]:
    """Return a rank's stages in eval mode; what cannot be evaluated is refused on all ranks alike.

    Raises
    ------
    DoesNotMatch
    """
    capture = builder.context.capture
    evaluated_part(extract(capture, capture.operators))
    return {index: builder.evaluated(stage, divided.views.get(index)) for index, stage in stages.items()}


class RankEvaluator:
    """Evaluations of a rank's batches.

    Parameters
    ----------
    context : RankContext
    program : Program
        Of `evaluated_stages`.
    divided : DividedStages
    averages : BufferSync
    """

    def __init__(self, context: RankContext, program: Program, divided: DividedStages, averages: BufferSync) -> None:
        self._context, self._program, self._divided, self._averages = context, program, divided, averages
        self._instructions = program.bind(action for action in context.order if action.kind in FORWARDS)
        self._metrics = Metrics()
        for stage in program.stages.values():
            if stage.part.has_loss:
                self._metrics.measure(stage)

    def run(self, metrics: Mapping[str, Metric], num_real: int | None) -> tuple[StepLoss, dict[str, float]]:
        """Run the loaded batch forward; returns its loss and metrics over all ranks; collective.

        `num_real` is how many micro-batches a short batch fills.
        """
        context, stages = self._context, self._program.stages
        self._metrics.begin(metrics)
        self._averages.agree()
        kept = [(buffer, buffer.clone()) for stage in stages.values() for buffer in stage.buffers]
        for stage in stages.values():
            stage.begin(num_real)
        with self._divided.evaluating():
            for instruction in self._instructions:
                context.groups.watch.at = instruction.action
                instruction.run()
        if self._program.transport is not None:
            self._program.transport.settle()
        for buffer, value in kept:  # what only counts forwards counts no evaluation
            buffer.data.copy_(value)
        loss = LossSum(own_loss(context, stages), context.groups).result()
        losing = [index for index, stage in stages.items() if stage.part.has_loss]
        counts = all(context.lanes.lane_of(index, context.rank) == 0 for index in losing)
        return loss, self._metrics.result(context.groups, counts) if metrics else {}
