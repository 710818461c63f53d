"""From a profile to the cost of any set of operators as one stage.

Times add up over operators; kept bytes do not: a storage that several operators keep, or that is
received and kept, is held once. Between measured micro-batch sizes times are interpolated linearly,
outside continued along the nearest two (an estimate). Leaves out: strategies within a stage.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.errors import UsageError
from costmodel.machines.cluster import Cluster
from costmodel.model.accumulation import Accumulation, accumulation_of
from costmodel.model.graph import Operator, Tensor
from costmodel.model.profile import Profile
from costmodel.model.whole import SplitRatios
from costmodel.stages.costs import StageCost

OPTIMIZER_STATES = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2}
"""Copies of each trainable parameter that the optimizer keeps, in the parameter's own precision."""


@dataclass(frozen=True)
class CostModel:
    """Costs of stages of one profile, cluster and micro-batch size.

    Attributes
    ----------
    profile : Profile
    cluster : Cluster
    microbatch_size : int
    optimizer : str
        One of `OPTIMIZER_STATES`; with ``none`` a stage has no optimizer step.
    """

    profile: Profile
    cluster: Cluster
    microbatch_size: int
    optimizer: str = "none"

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZER_STATES:
            raise UsageError(f"optimizer {self.optimizer!r}; allowed are {', '.join(OPTIMIZER_STATES)}")

    def stage(self, operators: Iterable[int], received: Iterable[Tensor] = ()) -> StageCost:
        """Return the cost of the operators at these positions of the graph as one stage.

        `received` are the tensors that arrive from other stages; the stage holds them until its
        backward, as leaves of its graph.
        """
        indices = sorted(operators)
        members = [self.profile.graph.operators[i] for i in indices]
        activation, until_weight = self._kept_bytes(members, received)
        parameters = {name for operator in members for name in operator.parameters}
        terms = self._static_terms(parameters)
        share = terms["gradients"] / self._trainable_bytes if self._trainable_bytes else 0.0
        whole = self.profile.whole
        trains = any(operator.trainable for operator in members)
        return StageCost(
            forward_ns=sum(self.forward_ns[i] for i in indices),
            backward_input_ns=sum(self.backward_input_ns[i] for i in indices),
            backward_weight_ns=sum(self.backward_weight_ns[i] for i in indices) + self.accumulation.over(parameters),
            activation_bytes=activation,
            weight_activation_bytes=until_weight,
            static_bytes=sum(terms.values()),
            optimizer_ns=round(whole.optimizer_ns * share) if self.optimizer != "none" else 0,
            backward=trains,
            memory_terms=tuple(terms.items()),
        )

    def tensor_bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor at this micro-batch size."""
        return self.at(tensor.size_bytes)

    def p2p_ns(self, first: int, second: int, size_bytes: int) -> int:
        """Time of a transfer between two ranks."""
        return self.cluster.p2p_ns(first, second, size_bytes)

    def host_ns(self, first: int, second: int, tensors: Iterable[Tensor]) -> int:
        """Time that either of two ranks loses to its end of the message of some tensors."""
        return self.cluster.host_ns(first, second, sum(map(self.tensor_bytes, tensors)))

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
    def accumulation(self) -> Accumulation:
        """What adding up gradients takes of each parameter, the same at every micro-batch size."""
        return accumulation_of(self.profile)

    @property
    def split_ratios(self) -> SplitRatios:
        """What F, and I with W, of a stage take longer where its backward is split."""
        return self.profile.whole.split_at(self.profile.microbatch_sizes, self.microbatch_size)

    @cached_property
    def _trainable_bytes(self) -> int:
        return sum(p.size_bytes for p in self.profile.graph.parameters if p.trainable)

    def _kept_bytes(self, members: Sequence[Operator], received: Iterable[Tensor]) -> tuple[int, int]:
        """Return the bytes kept from F until the backward, and the part kept on until W.

        W of an operator with weights reads what its forward kept, so those storages stay.
        """
        kept: dict[int, int] = {}
        late: dict[int, int] = {}
        for operator in members:
            for saved in operator.saved:
                size = saved.size_bytes if saved.fixed else saved.size_bytes * self.microbatch_size
                kept[saved.storage] = max(size, kept.get(saved.storage, 0))
                if operator.parameters and operator.trainable:
                    late[saved.storage] = kept[saved.storage]
        unnamed = 0
        for tensor in received:
            if tensor.storage < 0:
                unnamed += self.tensor_bytes(tensor)
            else:
                kept[tensor.storage] = max(self.tensor_bytes(tensor), kept.get(tensor.storage, 0))
        return sum(kept.values()) + unnamed, sum(late.values())

    def _static_terms(self, names: Iterable[str]) -> dict[str, int]:
        parameters = [self.profile.graph.parameter_index[name] for name in names]
        trainable = sum(p.size_bytes for p in parameters if p.trainable)
        return {
            "parameters": sum(p.size_bytes for p in parameters),
            "gradients": trainable,
            "optimizer": OPTIMIZER_STATES[self.optimizer] * trainable,
        }

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
