"""A profile's operators at one micro-batch size: times, tensors, gradient accumulation.

Between measured micro-batch sizes times are interpolated linearly, outside continued along the nearest two (an
estimate). Leaves out stages: what they cost is the business of `costmodel.stages.strategies` alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.model.accumulation import Accumulation, accumulation_of
from costmodel.model.graph import Tensor
from costmodel.model.profile import Profile
from costmodel.model.whole_model import SplitRatios


@dataclass(frozen=True)
class MeasuredOperators:
    """Costs of the operators of one profile at one micro-batch size.

    Attributes
    ----------
    profile : Profile
    microbatch_size : int
    """

    profile: Profile
    microbatch_size: int

    def tensor_bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor at this micro-batch size."""
        return self.at(tensor.size_bytes)

    @cached_property
    def forward_ns(self) -> tuple[int, ...]:
        """Forward of each operator."""
        return tuple(self.at(times.forward_ns) for times in self.profile.times)

    @cached_property
    def backward_input_ns(self) -> tuple[int, ...]:
        """Input gradient of each operator."""
        return tuple(self.at(times.backward_input_ns) for times in self.profile.times)

    @cached_property
    def backward_weight_ns(self) -> tuple[int, ...]:
        """Weight gradient of each operator, accumulation left out."""
        return tuple(self.at(times.backward_weight_ns) for times in self.profile.times)

    @cached_property
    def working_bytes(self) -> tuple[int, ...]:
        """What is alive while each operator runs, beyond what is kept; empty where the profile does not know."""
        times = self.profile.times
        return tuple(self.at(one.working_bytes) for one in times) if all(one.working_bytes for one in times) else ()

    @cached_property
    def accumulation(self) -> Accumulation:
        """What adding up gradients takes of each parameter, the same at every micro-batch size."""
        return accumulation_of(self.profile)

    @property
    def split_ratios(self) -> SplitRatios:
        """What F, and I with W, of a stage take longer where its backward is split."""
        return self.profile.whole.split_at(self.profile.microbatch_sizes, self.microbatch_size)

    def at(self, values: Sequence[int]) -> int:
        """Return the value at this micro-batch size from one value a measured size."""
        sizes = self.profile.microbatch_sizes
        size = self.microbatch_size
        if size in self._position:
            return values[self._position[size]]
        if len(sizes) == 1:
            return round(values[0] * size / sizes[0])
        right = next((i for i, known in enumerate(sizes) if known > size and i > 0), len(sizes) - 1)
        left = right - 1
        slope = (values[right] - values[left]) / (sizes[right] - sizes[left])
        return max(0, round(values[left] + slope * (size - sizes[left])))

    @cached_property
    def _position(self) -> Mapping[int, int]:
        return {size: i for i, size in enumerate(self.profile.microbatch_sizes)}
