"""Parts of a search that raise its bound: families one by one, and the proof that ``--exact`` asks for.

Leaves out where the bound of one family comes from (`planner.search.bounders`).
"""

from collections.abc import Generator

from planner.search.bounders.proof import Exact
from planner.search.subsolver import SearchState, Subsolver


class Bounds(Subsolver):
    """Bounds that need no search, of all families, and then the least of them again, dearer."""

    name, kind = "bounds", "prove"

    def steps(self) -> Generator[None]:
        """Bound families that were not looked at, then raise the least bound until it is the least."""
        bounds = self.state.bounds
        while not bounds.seen_all:
            bounds.take_unseen(self.slice)
            yield
        for settle in (bounds.settle, bounds.settle_split):
            settle(self.slice)
            while self.slice.expired:  # it goes on in the next turn
                yield
                settle(self.slice)
            yield


class ExactProof(Bounds):
    """The cut model goes through all that may be better than the best, once that is bounded without it."""

    name, kind = "proof", "prove"
    _done = False

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether a proof is asked for."""
        return state.problem.exact

    def steps(self) -> Generator[None]:
        """Prove until nothing is left, or the search is over."""
        state = self.state
        if self._done or not state.pool.found:
            return
        self._done = True
        yield from super().steps()
        proof = Exact(state.bounds)
        yield from proof.prove(state.solver, state.limits)
        state.solver_lost |= proof.lost
        state.closed = proof.done  # but for families that the model does not know
