"""What a plan's stages take for micro-batches of samples of unlike lengths: one cost an action.

Time and memory of an action grow with the tokens of its samples, without padding between them; what attention takes of
it (by the profile's operators) grows with the sum of the squares of their lengths, for no sample attends to another.
Leaves out messages, which stay as long as the plan has them, and what an action takes whatever its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.errors import UsageError
from costmodel.stages.costs import Amount, Costs, StageCost, largest
from planner.plan import Plan
from planner.plan.provenance import of_a_sample
from planner.question.problem import Problem

Microbatches = Sequence[Sequence[int]]
"""Tokens of the samples of each micro-batch."""


@dataclass(frozen=True)
class LengthCosts:
    """Costs of a plan at lengths.

    Raises
    ------
    UsageError
        When samples are not made of tokens.
    """

    problem: Problem
    plan: Plan

    def __post_init__(self) -> None:
        if not self.tokens:
            raise UsageError("--lengths: the model's samples are not made of tokens; leave it out")

    @property
    def tokens(self) -> int:
        """Tokens of a sample for which the plan is priced."""
        return of_a_sample(self.plan, "tokens")

    def of(self, microbatches: Microbatches) -> Costs:
        """Return the plan's costs with these micro-batches."""
        costs = self._costs
        pairs = zip(costs.stages, costs.multiples, self.attention, strict=True)
        stages = tuple(self._stage(cost, multiple, share, microbatches) for cost, multiple, share in pairs)
        return replace(costs, stages=stages)

    def work_ns(self, tokens: int) -> float:
        """Return what one sample takes in the stage that takes longest of all."""
        return max(self._sample_ns(stage, tokens) for stage in range(len(self.attention)))

    def stage_ns(self, stage: int, lengths: Sequence[int]) -> float:
        """Return what samples take in a stage, forward and backward."""
        return sum(self._sample_ns(stage, tokens) for tokens in lengths)

    def forward_ns(self, stage: int, tokens: int) -> float:
        """Return what the forward of one sample takes in a stage."""
        cost, share = self._costs.stages[stage], self.attention[stage][0]
        long = tokens / self.tokens
        return largest(cost.forward_ns) * long * (1 - share + share * long) / self._samples(stage)

    def _sample_ns(self, stage: int, tokens: int) -> float:
        cost, (forward, backward) = self._costs.stages[stage], self.attention[stage]
        long = tokens / self.tokens
        ahead = largest(cost.forward_ns) + largest(cost.recompute_ns)
        curved = forward * ahead + backward * largest(cost.backward_input_ns)
        whole = ahead + largest(cost.backward_input_ns) + largest(cost.backward_weight_ns)
        return long * (whole - curved + curved * long) / self._samples(stage)

    def _samples(self, stage: int) -> int:
        return self.plan.batch.microbatch_size * self._costs.multiples[stage]

    @cached_property
    def _costs(self) -> Costs:
        return self.plan.costs()

    def _stage(
        self, cost: StageCost, multiple: int, attention: tuple[float, float], microbatches: Microbatches
    ) -> StageCost:
        groups = [
            [tokens / self.tokens for row in microbatches[i : i + multiple] for tokens in row]
            for i in range(0, len(microbatches), multiple)
        ]
        size = self.plan.batch.microbatch_size * multiple
        straight = [sum(group) / size for group in groups]
        squared = [sum(long * long for long in group) / size for group in groups]

        def grown(amount: Amount, share: float = 0.0) -> Amount:
            whole = largest(amount)
            return tuple(round(whole * ((1 - share) * a + share * b)) for a, b in zip(straight, squared, strict=True))

        forward, backward = attention
        activation = grown(cost.activation_bytes)
        return replace(
            cost,
            forward_ns=grown(cost.forward_ns, forward),
            recompute_ns=grown(cost.recompute_ns, forward) if cost.recompute_ns else 0,
            backward_input_ns=grown(cost.backward_input_ns, backward),
            backward_weight_ns=grown(cost.backward_weight_ns),
            activation_bytes=activation,
            weight_activation_bytes=grown(cost.weight_activation_bytes),
        )

    @cached_property
    def attention(self) -> tuple[tuple[float, float], ...]:
        """What part attention has of each stage's forward and of its backward's first half, by the profile."""
        profile = self.problem.profile
        sizes = profile.microbatch_sizes
        at = min(range(len(sizes)), key=lambda i: abs(sizes[i] - self.plan.batch.microbatch_size))
        index = profile.graph.index
        found = []
        for stage in self.plan.stages:
            forward, backward, curved, curved_backward = 0, 0, 0, 0
            for position in map(index.__getitem__, stage.operators):
                times, work = profile.times[position], profile.graph.operators[position].work
                forward, backward = forward + times.forward_ns[at], backward + times.backward_input_ns[at]
                if work and work.kind == "attention":
                    curved, curved_backward = (
                        curved + times.forward_ns[at],
                        curved_backward + times.backward_input_ns[at],
                    )
            found.append((curved / max(forward, 1), curved_backward / max(backward, 1)))
        return tuple(found)
