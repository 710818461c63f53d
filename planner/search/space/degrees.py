"""Degrees: every way to divide a stage among its ranks that the devices, the operators and the fixed choices admit.

With them how many replicas may divide states. Leaves out what else is configured of a stage (ZeRO, recompute,
offload: `family.py`).
"""

from collections.abc import Callable, Iterator
from functools import cached_property

from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel
from planner.question.problem import Problem
from planner.question.validation import divisors
from planner.search.space.dropped import Dropped

LEAST_TOKENS = 256
"""Fewest tokens of a sample on a rank along which sequences are divided."""


class DegreeSpace:
    """All ways to divide a stage.

    Attributes
    ----------
    problem : Problem
    dropped : Dropped
        What could not be divided, placed or ordered.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.dropped = problem, Dropped()
        self._divided: dict[tuple[int, ...], bool] = {}

    @cached_property
    def degrees(self) -> tuple[StageConfig, ...]:
        """Every way to divide a stage among its ranks."""
        return self.degrees_where(lambda _: True)

    def degrees_where(self, wanted: Callable[[StageConfig], bool]) -> tuple[StageConfig, ...]:
        """Return the wanted ways to divide a stage among its ranks; no other is tried on the operators."""
        return tuple(dict.fromkeys(self._degrees(wanted)))

    def _degrees(self, wanted: Callable[[StageConfig], bool]) -> Iterator[StageConfig]:
        num = self.problem.num_devices // (self.problem.space.stages or 1)
        for tensor in self._degree("tensor", num):
            for context in self._degree("context", num // tensor):
                for data in self._datas(num // (tensor * context)):
                    for sequence in self._sequences(tensor):
                        for expert, inner in self._experts(data * context * tensor, tensor, sequence):
                            config = StageConfig(data, tensor, sequence, context, expert, expert_tensor=inner)
                            if wanted(config) and self._divides(config):
                                yield config

    def _divides(self, config: StageConfig) -> bool:
        """Whether all operators can be divided so; what cannot be refuses no other way."""
        key = config.tensor, config.context, config.expert, config.expert_tensor
        if key not in self._divided:
            operators = range(len(self.problem.profile.graph.operators))
            self._divided[key] = False
            with self.dropped.candidate():
                for model in self.models(self.problem.profile.microbatch_sizes[0]):
                    model.check_divides(operators, config)
                self._divided[key] = True
        return self._divided[key]

    def _degree(self, name: str, most: int) -> tuple[int, ...]:
        """Return degrees to try where operators say what they compute, and so can be divided.

        Divisors of the devices, and powers of two: of 9 devices a plan may leave one idle.
        """
        fixed = getattr(self.problem.space, name)
        if fixed:
            return (fixed,) if fixed <= most else ()
        if not self._divisible or (name == "context" and self.problem.has_module):
            return (1,)  # a module's own code works on whole sequences
        if name == "context":
            most = min(most, max(1, self.num_tokens // LEAST_TOKENS))
        powers = (1 << i for i in range(most.bit_length()))
        return tuple(d for d in sorted({*divisors(self.problem.num_devices), *powers}) if d <= most)

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of a sample along which sequences may be divided."""
        works = (operator.work for operator in self.problem.profile.graph.operators)
        return max((work.tokens for work in works if work), default=1)

    @cached_property
    def expert_degrees(self) -> tuple[int, ...]:
        """Numbers of ranks over which experts can be spread."""
        return tuple(sorted({config.expert for config in self.degrees}))

    def _datas(self, most: int) -> tuple[int, ...]:
        fixed = self.problem.space.data
        if fixed:
            return (fixed,) if fixed <= most else ()
        return tuple(d for d in divisors(self.problem.global_batch) if d <= most)

    def _experts(self, ranks: int, tensor: int, sequence: int) -> Iterator[tuple[int, int]]:
        """Yield over how many ranks experts spread, and how many divide each: the tensor ranks, or none by itself."""
        space = self.problem.space
        if not self._has_experts:
            parts = {tensor}
        elif tensor > 1 and sequence == 1:  # no rank has tokens of its own
            parts = {tensor} & {space.expert_tensor or tensor}
        else:
            parts = {space.expert_tensor} if space.expert_tensor else {tensor, 1}
        for inner in sorted(part for part in parts if ranks % part == 0):
            known = (space.expert,) if space.expert else divisors(ranks // inner) if self._has_experts else (1,)
            yield from ((expert, inner) for expert in known if ranks // inner % expert == 0)

    def _sequences(self, tensor: int) -> tuple[int, ...]:
        fixed = self.problem.space.sequence_parallel
        if tensor == 1 or (not fixed and (fixed is False or self.problem.has_module)):
            return () if fixed else (1,)
        return (tensor,) if fixed else (1, tensor)

    @cached_property
    def _divisible(self) -> bool:
        """Whether operators say what they compute, so that they can be divided."""
        return all(operator.work for operator in self.problem.profile.graph.operators)

    @cached_property
    def _has_experts(self) -> bool:
        """Whether the model has experts, and none that are left whole."""
        works = [operator.work for operator in self.problem.profile.graph.operators]
        return {work.split for work in works if work and work.experts} == {"expert"}

    def models(self, microbatch_size: int) -> list[StrategyModel]:
        """Return the price of stages on each type of device among those planned for."""
        machines = self.problem.machines
        known = {device.name: device for device in machines.devices}
        return [self.problem.stage_model(known[name], microbatch_size) for name in self.type_names]

    @cached_property
    def type_names(self) -> tuple[str, ...]:
        """Types of device among those planned for, as the cluster lists them, whatever the order of its hosts."""
        names = set(self.problem.device_names)
        return tuple(device.name for device in self.problem.machines.devices if device.name in names)

    def shard_groups(self, config: StageConfig) -> tuple[int, ...]:
        """Return how many replicas may divide states under ZeRO: the number fixed, or all (0), and a host's share.

        What no network joins is taken for a host. A smaller group holds more and sends over the same links.
        """
        fixed = self.problem.space.shard_group
        within, left = divmod(self.scaleup_devices, config.tensor * config.context)
        shares = within and not left and within < config.data
        found = (fixed,) if fixed else (0, within) if shares else (0,)
        return tuple(group for group in found if _may_share(config, group))

    @cached_property
    def scaleup_devices(self) -> int:
        """Devices that no network joins, at most; 0 where it joins all, or none."""
        machines = self.problem.machines
        return max((link.group for link in machines.groups if machines.link_kind(link) != "network"), default=0)


def _may_share(config: StageConfig, group: int) -> bool:
    """Whether a group of this number of replicas may divide states; 0 stands for all."""
    copies = group * config.context
    parts = copies * config.tensor % config.num_expert_parts
    return not group or (config.data % group == 0 and copies > 1 and parts == 0)
