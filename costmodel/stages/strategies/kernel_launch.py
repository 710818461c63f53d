"""What divided operators take on a device that works behind its host: the kernels divide, their launches do not.

The profile's launches are put together again with the divided kernels' times (`costmodel.model.launches`). Leaves out
profiles that know launches of some operators alone.
"""

from collections.abc import Sequence

from costmodel.model.launches import Composed, Times
from costmodel.stages.measured_operators import MeasuredOperators


class KernelLaunch:
    """Times of the operators of one profile with launches, at one micro-batch size."""

    def __init__(self, model: MeasuredOperators) -> None:
        launches = [times.launches for times in model.profile.times]
        self.known = all(launches) and len(launches) > 0
        times = zip(model.forward_ns, model.backward_input_ns, model.backward_weight_ns, strict=True)
        self._composed = Composed([one.calls(model.at) for one in launches if one is not None], list(times))

    def divided(self, rows: Sequence[Times]) -> list[Times]:
        """Return what operators take whose times, were they all kernels, would be these."""
        return self._composed.with_kernels(rows)
