"""The whole model on each of the most replicas: what people try first, and what each such strategy lacks.

Of each strategy of one stage that no plan was found to fit on, every way to recompute is simulated with the smallest
micro-batches; those that fit with larger ones, too, for these hold more. What fits is offered to the pool. Leaves
out other strategies, of which what the search met counts.
"""

from itertools import chain

from planner.candidate.evaluate import Evaluated
from planner.plan.rung import RUNGS, strategy_of
from planner.search.budget import Deadline
from planner.search.space.family import Family
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem


class WholeModels:
    """The strategies of one stage alone.

    Parameters
    ----------
    prepared : PreparedProblem
    pool : CandidatePool
    offers : bool
        Whether what fits is offered to it: other planners than ours propose what they are for.
    limits : Deadline, optional
        Of the whole command: after that nothing more is simulated.

    Attributes
    ----------
    priced : set of str
        Strategies of which every way to recompute and every micro-batch size was simulated, or holds more than one.
    """

    def __init__(
        self, prepared: PreparedProblem, pool: CandidatePool, *, offers: bool, limits: Deadline | None = None
    ) -> None:
        self._setting, self._incumbent, self._offers, self._limits = prepared, pool, offers, limits
        self.priced: set[str] = set()
        self._tried: list[Evaluated] = []
        if not prepared.pinned.places and (prepared.problem.space.stages or 1) == 1:
            self._try({each.strategy for each in pool.found.values() if each.fits})

    def misfits(self) -> dict[str, list[Evaluated]]:
        """Return the candidates of each strategy of which none fits, those that exceed memory least first."""
        met = (*self._incumbent.found.values(), *self._tried)
        fitting = {each.strategy for each in met if each.fits}
        rows: dict[str, list[Evaluated]] = {}
        for each in met:
            if (
                each.strategy in RUNGS
                and each.strategy not in fitting
                and each.excess_bytes
                and not each.num_apart_violations
            ):
                rows.setdefault(each.strategy, []).append(each)
        return {name: sorted(row, key=lambda each: each.sort_key) for name, row in rows.items()}

    def _try(self, fitting: set[str]) -> None:
        """Simulate the strategies of one stage that are not among the fitting."""
        rows: dict[tuple[str, str, int], list[Family]] = {}
        groups = self._setting.families.groups(lambda config: config.whole_operators)
        for family in chain.from_iterable(each for each in groups if each.chunks == (1,)):
            if family.config.offload == "none":
                name = strategy_of([family.config], is_line=True)
                rows.setdefault((name, family.config.recompute, family.arrangement), []).append(family)
        self.priced = {name for name, _, _ in rows if name not in fitting}
        for (name, _, _), row in rows.items():
            most = max(family.config.data for family in row)
            if name not in fitting:
                self._try_sizes(name, sorted({f for f in row if f.config.data == most}, key=_size))

    def _try_sizes(self, name: str, families: list[Family]) -> None:
        """Simulate micro-batches from the smallest on until some do not fit, and the largest."""
        tried: list[Evaluated] = []
        for family in families:
            if self._limits and self._limits.expired:
                self.priced.discard(name)
                break
            cuts, num_before = self._setting.cuts(family), len(tried)
            tried += cuts.evaluate_under((0,) * len(cuts.atoms), cuts.schedules[:1])
            if len(tried) == num_before:
                self.priced.discard(name)
            elif not tried[-1].fits:
                break
        late = self._limits is not None and self._limits.expired
        if tried and not late and families[-1].microbatch_size > tried[-1].candidate.microbatch_size:
            cuts = self._setting.cuts(families[-1])
            tried += cuts.evaluate_under((0,) * len(cuts.atoms), cuts.schedules[:1])
        self._tried += tried
        if self._offers:
            self._incumbent.offer(each for each in tried if each.fits)


def _size(family: Family) -> int:
    return family.microbatch_size
