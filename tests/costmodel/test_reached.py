"""What gradients of some values of a program reach is what autograd reaches: detached parts and masks are not."""

import pytest
import torch
from torch import nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture


class Branches(nn.Module):
    """A main road, a branch that is detached, one under no_grad, and one that is written into in place."""

    def __init__(self):
        super().__init__()
        self.main, self.detached, self.still, self.written = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        with torch.no_grad():
            still = self.still(x)
        rows = torch.zeros(x.shape[0], 4)
        rows.add_(self.written(x))
        other = self.detached(x)
        return self.main(x) * still + other.detach() + rows.relu(), other


@pytest.mark.parametrize(
    ("outputs", "reached"),
    [((0,), {"main", "written"}), ((1,), {"detached"}), ((0, 1), {"main", "written", "detached"}), ((), set())],
)
def test_gradients_reach_what_autograd_reaches_through_the_captured_program(outputs, reached):
    model = TrainingModel("branches", Branches(), (torch.zeros(4, 4),), {}, None, False, lambda o: o[0].sum(), {}, 4)
    captured = capture(model, 2)
    _, reach = captured.describe_with_reach(2)
    behind = reach.behind(captured.outputs[place].name for place in outputs)
    read = {captured.name_of.get(id(value)) for name, value in _attributes(captured) if name in behind}
    assert {name.partition(".")[0] for name in read if name} == reached


def _attributes(captured):
    program = captured.program.module
    return [(node.name, program.get_parameter(node.target)) for node in program.graph.find_nodes(op="get_attr")
            if node.target in dict(program.named_parameters())]  # fmt: skip
