"""What adding a micro-batch's gradients to those that are there takes of the parameters that a stage holds.

Each parameter is added by a call of its own, whose fixed cost is most of what a small one takes: where a profile has
the parameters' own times these count, else (imported, estimated, older profiles) bytes do. Leaves out that a cut
parameter pays the call's fixed cost on every rank.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from costmodel.model.graph import Parameter
from costmodel.model.profile import Profile


@dataclass(frozen=True)
class Accumulation:
    """A profile's `whole.accumulate_ns` and how much of it each trained parameter counts for (ns, or bytes)."""

    whole_ns: int
    weight_of: Mapping[str, int]

    def over(self, names: Iterable[str]) -> int:
        """Return the time (ns) of a stage that reads these parameters, each named once; frozen ones take none."""
        return self.part_ns(sum(self.weight_of.get(name, 0) for name in names))

    def part_ns(self, weight: int) -> int:
        """Return the time of parameters, or shards of them, whose shares add up to this."""
        return round(self.whole_ns * weight / self._total)

    def least_ns(self, weight: int) -> int:
        """Return that time rounded down: no sum of these exceeds what `part_ns` of all would be unrounded."""
        return self.whole_ns * weight // self._total

    def at_least(self, name: str) -> int:
        """Return one parameter's time rounded down."""
        return self.least_ns(self.weight_of.get(name, 0))

    @cached_property
    def _total(self) -> int:
        return max(1, sum(self.weight_of.values()))


def accumulation_of(profile: Profile, bytes_of: Callable[[Parameter], int] = lambda p: p.size_bytes) -> Accumulation:
    """Return how a profile's accumulation divides; `bytes_of` counts where it was not measured by parameter."""
    known, graph = profile.accumulate_of, profile.graph
    read = {name for operator in graph.operators for name in operator.parameters}
    trained = [p for p in graph.parameters if p.trainable and p.name in read]
    return Accumulation(profile.whole.accumulate_ns, {p.name: known[p.name] if known else bytes_of(p) for p in trained})
