"""Several tensors travel as one message."""

import pytest
import torch

from executor.communication.packing import ALIGNMENT, empty_message, pack

CASES = {
    "one": [torch.arange(6.0).view(2, 3)],
    "none": [],
    "one type": [torch.rand(3, 5), torch.rand(16), torch.tensor(2.0)],
    "several types": [torch.arange(3), torch.ones(2, 2, dtype=torch.bfloat16), torch.tensor([True]), torch.rand(5)],
    "not contiguous": [torch.arange(6.0).view(2, 3).t(), torch.rand(4)[::2]],
    "a column of another type": [torch.arange(8).view(2, 4)[:, 1], torch.rand(3)],
    "empty ones": [torch.zeros(0, 3), torch.ones(2)],
}


@pytest.mark.parametrize("tensors", CASES.values(), ids=CASES)
def test_a_message_holds_its_tensors_as_their_shapes_alone_say(tensors):
    message, views = empty_message(tuple((tuple(t.shape), t.dtype) for t in tensors), torch.device("cpu"))
    sent = pack(tensors)
    assert (sent.shape, sent.dtype) == (message.shape, message.dtype)
    message.copy_(sent)
    assert all(torch.equal(view, tensor) for view, tensor in zip(views, tensors, strict=True))
    assert message.numel() > 0
    assert all(view.data_ptr() % ALIGNMENT == 0 for view in views)
    assert all(view.is_contiguous() for view in views)


def test_a_message_takes_no_part_in_autograd():
    assert not pack([torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]).requires_grad
