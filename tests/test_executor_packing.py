"""Several tensors travel as one message."""

import pytest
import torch

from executor.packing import empty_message, pack

CASES = {
    "one": [torch.arange(6.0).view(2, 3)],
    "none": [],
    "several types": [torch.arange(3), torch.ones(2, 2, dtype=torch.bfloat16), torch.tensor([True]), torch.rand(5)],
    "not contiguous": [torch.arange(6.0).view(2, 3).t(), torch.rand(4)[::2]],
    "empty ones": [torch.zeros(0, 3), torch.ones(2)],
}


@pytest.mark.parametrize("tensors", CASES.values(), ids=CASES)
def test_a_message_holds_its_tensors_as_their_shapes_alone_say(tensors):
    message, views = empty_message([(tuple(t.shape), t.dtype) for t in tensors], torch.device("cpu"))
    sent = pack(tensors)
    assert (sent.shape, sent.dtype) == (message.shape, message.dtype)
    message.copy_(sent)
    assert all(torch.equal(view, tensor) for view, tensor in zip(views, tensors, strict=True))
    assert message.numel() > 0
