"""What each operator has on the device while it runs, beyond what its stage keeps: values on their way, temporaries.

Seen in one real step, as tensors that are alive. A stage's highest point often lies in its backward: gradients that
flow, and what a norm makes in float32, while most of what was kept is still there. Leaves out what kernels take inside.
"""

from collections.abc import Mapping

import torch

from costmodel.capture.batches import TrainingModel
from costmodel.profiling.measure.live import LiveBytes
from costmodel.profiling.measure.timing import Observed
from costmodel.profiling.measure.walk import Walk


def working_bytes(walk: Walk, piece: TrainingModel, saved: Mapping[str, tuple[tuple[int, int], ...]]) -> dict[str, int]:
    """Return for each operator the most bytes alive in its forward or backward, above what it and those before it save.

    Parameters
    ----------
    walk, piece
        A captured model and one micro-batch; gradients are added up.
    saved : mapping
        (storage, bytes) by operator, of a step on such a micro-batch.
    """
    for parameter in walk.capture.model.module.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)  # to be added to, as in all micro-batches but the first
    with LiveBytes() as live:
        marks = _Marks(live)
        seen = Observed(walk, marks)
        seen.run(piece)
    most: dict[str, int] = {}
    behind = zip(seen.backward, seen.backward[1:], strict=False)
    for owner, start, end in [*seen.forward, *((owner, start, end) for (owner, start), (_, end) in behind)]:
        most[owner] = max(most.get(owner, 0), marks.most(start, end))
    found: dict[str, int] = {}
    kept: dict[int, int] = {}
    for name in walk.capture.operators:
        kept.update(saved.get(name, ()))
        found[name] = max(0, most.get(name, 0) - sum(kept.values()))
    return found


class _Marks:
    """Marks between which the most bytes alive are known; a clock to whoever sets them."""

    def __init__(self, live: LiveBytes) -> None:
        self._live = live
        self._peaks: list[int] = []

    def host_ns(self) -> int:
        """Return nothing: this clock tells no time."""
        return 0

    def mark(self) -> int:
        """Begin to look anew."""
        self._peaks.append(self._live.peak)
        self._live.peak = self._live.now
        return len(self._peaks)

    def wait(self) -> None:
        """Nothing is pending that counts."""

    def span_ns(self, start: int, end: int) -> int:
        """Return `most`."""
        return self.most(start, end)

    def most(self, start: int, end: int) -> int:
        """Return the most bytes alive between two marks."""
        return max(self._peaks[start:end], default=0)
