"""Bounds of stages with replicas of their own number, which no family holds: kept by one replica of each.

Leaves out where they come from (`FreeBounds.even_by_replicas_ns`, `pipeline_fill`).
"""

from dataclasses import replace
from functools import cached_property, partial

from planner.search.bounders.pipeline_fill import by_replicas_ns, held_by_replicas_ns
from planner.search.budget import Deadline
from planner.search.space.family import Family
from planner.search.space.open_choices import allows_per_stage_replicas, with_split_backward
from planner.search.state.prepared import PreparedProblem


class ReplicaBounds:
    """What is known of such stages; of whole backwards and of split ones."""

    def __init__(self, prepared: PreparedProblem) -> None:
        self.prepared = prepared
        self._raised: set[Family] = set()

    @cached_property
    def whole(self) -> dict[Family, int]:
        """Bounds of whole backwards."""
        return dict(self.split)

    @cached_property
    def split(self) -> dict[Family, int]:
        """Bounds on all devices however few stages are allowed.

        They hold of split backwards, and so of whole ones, which are one order of I and W.
        """
        if not allows_per_stage_replicas(self.prepared.problem, self.prepared.pinned):
            return {}
        bound, dropped = self.prepared.free_bounds.even_by_replicas_ns, self.prepared.dropped
        known = {each: dropped.bound(partial(bound, each)) for each in self.prepared.families.single_replicas}
        return {each: bound_ns for each, bound_ns in known.items() if bound_ns is not None}

    def rise(self, family: Family, bound_ns: int) -> None:
        """Take a bound; one of split backwards holds of whole ones, too."""
        one = replace(family, split=False)
        for known in (self.split, self.whole) if family.split else (self.whole,):
            if one in known:
                known[one] = max(known[one], bound_ns)

    def settle(self, limits: Deadline, *, split: bool) -> None:
        """Raise the least bound of one kind until it is one that was raised."""
        known = self.split if split else self.whole
        while known and not limits.expired:
            family = min(known, key=known.__getitem__)
            own = with_split_backward(family) if split else family
            if own in self._raised:
                break
            bound = self.prepared.dropped.bound
            fill_ns = 0 if split else bound(partial(by_replicas_ns, self.prepared, family))
            held_ns = bound(partial(held_by_replicas_ns, self.prepared, own))
            known[family] = max(known[family], fill_ns or 0, held_ns or 0)
            self._raised.add(own)
