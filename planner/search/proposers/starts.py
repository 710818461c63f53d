"""Starts of the search that know of memory and of replicas by stage: what GraphPipe's program proposes.

The first look cuts by work alone; where memory binds, all that it finds of a family may be over the limit. A proposal
whose stages are alike belongs to a family, which is then cut with care from it. Leaves out several micro-batches an
action: no bound of the search ranges over them.
"""

from collections.abc import Generator, Iterator

from planner.candidate.candidate import alike
from planner.candidate.evaluate import Evaluated
from planner.search.budget import Deadline
from planner.search.published import graphpipe
from planner.search.published.prices import View
from planner.search.published.proposals import not_taken, proposals
from planner.search.space.family import Family
from planner.search.space.open_choices import allows_per_stage_replicas
from planner.search.state.prepared import PreparedProblem
from planner.search.subsolver import SearchState, Subsolver

MOST_DEVICES = 128
"""Devices up to which that is worth its time: the program tries every number of replicas."""


def proposed(prepared: PreparedProblem, limits: Deadline) -> Iterator[Evaluated]:
    """Yield proposals at each micro-batch size, each with an equal part of the time."""
    problem = prepared.problem
    sizes = () if not_taken(problem) or problem.num_devices > MOST_DEVICES else problem.microbatch_sizes
    for number, size in enumerate(sizes):
        mine = Deadline(limits.remaining_s / (len(sizes) - number))
        rows: list[Evaluated] = []
        with prepared.dropped.candidate():
            for row in proposals(graphpipe.propose_singly, View(prepared, size), mine, line=False):
                rows += (*row, *_in_families(prepared, row))
        yield from rows
        if limits.expired:
            return


def _in_families(prepared: PreparedProblem, row: list[Evaluated]) -> Iterator[Evaluated]:
    """Yield proposals of stages that are alike as their family places them."""
    uniform = [each.candidate for each in row if alike(each.candidate.places)]
    for partition, config in dict.fromkeys((found.partition, found.places[0].config) for found in uniform):
        family = Family(config, uniform[0].microbatch_size)
        if prepared.families.holds(family):
            cuts = prepared.cuts(family)
            yield from cuts.evaluate_under(partition, cuts.schedules)


class Starts(Subsolver):
    """What GraphPipe's program proposes, once."""

    name = "starts"
    _done = False

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether stages may have replicas of their own number."""
        open_ones = allows_per_stage_replicas(state.problem, state.prepared.pinned, singly=True)
        return open_ones and super().supports(state)

    def steps(self) -> Generator[None]:
        """Offer the proposals of one micro-batch size after the other."""
        if not self._done:
            self._done = True
            state = self.state
            for each in proposed(state.prepared, self.slice):
                state.pool.offer([each])
                if (family := state.prospects.family_of(each)) is not None:
                    state.bounds.know(family)
                yield
