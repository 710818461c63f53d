"""`--exact`: no partition of any family is better than the best plan, proved on the simulated step itself.

The cut model (`planner.search.solvers.cpsat`) bounds a family from below: its stages as a graph, and as a line. The
partition of least bound is simulated under every schedule of the family, and forbidden; so is the next one, until the
least bound that is left is no better than the best plan: then nothing of the family is. The least bound comes first.
Bounds hold in whatever order places take the devices, so that a partition is simulated in each. Leaves out replicas
that differ by stage, and families that the cut model does not know (`FreeBounds.is_cut_exactly`): these keep
their bound, and where it is below the best plan nothing is proved.
"""

from collections.abc import Iterator
from dataclasses import replace

from costmodel.errors import UsageError
from planner.graph.atoms import Partition
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.budget import Deadline
from planner.search.solvers.cpsat.child import ProofRequest, Solver
from planner.search.solvers.relaxation.build import cut_data
from planner.search.solvers.relaxation.data import CutData
from planner.search.solvers.relaxation.transfers import messages
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem

MOST_ATOMS, MOST_PLACES = 100, 6
"""Pieces of the model, and places of a pipeline, up to which a proof is tried."""
NUM_SOLVES = 16
"""Solves of one family before that of the least bound is asked for again."""
UNLIMITED = 1e9
"""Deterministic seconds where the clock alone ends a proof."""


def check_size(prepared: PreparedProblem) -> None:
    """Refuse a problem that is too large for a proof.

    Raises
    ------
    UsageError
        Above `MOST_ATOMS` or `MOST_PLACES`.
    """
    atoms = len(prepared.atoms)
    most = max((num_stages(prepared, family) // family.chunks for family in prepared.families.all), default=1)
    if atoms > MOST_ATOMS:
        raise UsageError(
            f"--exact proves models of up to {MOST_ATOMS} pieces, and this one has {atoms}; pin operators together "
            "(--pin), or drop --exact"
        )
    if most > MOST_PLACES:
        raise UsageError(
            f"--exact proves pipelines of up to {MOST_PLACES} places, and {most} are possible; give --max-stages "
            f"{MOST_PLACES}, or drop --exact"
        )


def num_stages(prepared: PreparedProblem, family: Family) -> int:
    """Return the most stages of a family's partitions; 0 where it has none."""
    atoms, most, chunks = len(prepared.atoms), prepared.families.max_pipeline_stages(family), family.chunks
    fixed = prepared.problem.space.stages
    most = min(most, atoms // chunks)
    if (fixed and fixed > most) or (chunks > 1 and most < 2):  # a loop of one place serves nothing
        return 0
    return (fixed or most) * chunks


Part = tuple[Family, bool]
"""A family's stages in a line (True), through which tensors pass from stage to next stage, or in a graph."""


class Exact:
    """A proof: which families are closed, and which partitions of each are known.

    Parameters
    ----------
    bounds : FamilyBounds
        Raised here, and filled with the families of which no partition fits.

    Attributes
    ----------
    lost : bool
        Whether the solver's process was lost.
    """

    def __init__(self, bounds: FamilyBounds) -> None:
        self.bounds, self.prepared, self.pool = bounds, bounds.prepared, bounds.pool
        prepared = self.prepared
        for family in [family for family in bounds.of if not num_stages(prepared, family)]:
            del bounds.of[family]  # it has no plan
        self._bounds: dict[Part, int] = {part: bounds.of[part[0]] for part in self._parts()}
        self._closed: set[Part] = set()
        self._known: dict[Part, dict[Partition, None]] = {part: {} for part in self._bounds}
        self._data: dict[Part, CutData] = {}
        limit = prepared.problem.effort.deterministic_limit
        self._work = UNLIMITED if limit is None else limit
        self.lost = False

    def _parts(self) -> Iterator[Part]:
        """Yield what the cut model knows; with one stage, or all of them in a line, a graph is a line."""
        first = (family for family in tuple(self.bounds.of) if family.arrangement == 0)
        for family in filter(self.prepared.free_bounds.is_cut_exactly, first):
            cuts = self.prepared.cuts(family)
            self.bounds.rise(family, self.prepared.free_bounds.closed_form_ns(family))
            if not cuts.always_line:
                yield family, False
            if cuts.always_line or self._most_stages(cuts) > 1:
                yield family, True

    @property
    def done(self) -> bool:
        """Whether no family that the cut model knows may hold anything better than the best."""
        return self._next() is None

    def prove(self, solver: Solver, limits: Deadline) -> Iterator[None]:
        """Close one family after the other, a request of the solver at a time."""
        while (part := self._next()) and not limits.expired and self._work > 0:
            ended = self._ask(part, solver, limits)
            self._settle()
            self.bounds.settle(limits)
            self.lost = not ended and not limits.hit
            if self.lost:
                return
            yield

    def _next(self) -> Part | None:
        """Return what may hold something better, that of the least bound."""
        best_ns = self._best_ns
        open_ones = [
            part
            for part, bound_ns in self._bounds.items()
            if part not in self._closed
            and part[0] not in self.bounds.impossible
            and (best_ns is None or bound_ns < best_ns)
        ]
        return min(open_ones, key=self._bounds.__getitem__, default=None)

    @property
    def _best_ns(self) -> int | None:
        """The best step of what fits and the target runs."""
        best = self.pool.best
        return best.step_time_ns if best.fits and self.pool.runs(best) else None

    def _ask(self, part: Part, solver: Solver, limits: Deadline) -> bool:
        """Simulate partitions, the least bound first; returns whether the solver answered to the end."""
        (family, line), best_ns, ended = part, self._best_ns, False
        data, known = self._cut_data(part), self._known[part]
        request = ProofRequest(
            family=list(self._bounds).index(part),
            data=data,
            forbidden=tuple(known),
            most=None if best_ns is None else (best_ns - 1) // data.unit_ns,
            hint=self._hint(part),
            count=NUM_SOLVES,
            seconds=limits.remaining_s,
            deterministic=self._work,
            seed=self.prepared.problem.effort.seed,
        )
        for finding in solver.findings(request, limits):
            if finding["kind"] == "partition":
                partition = tuple(finding["partition"])
                known[partition] = None
                for each in map(self.prepared.cuts, self._ordered(family)):
                    self.pool.offer(each.evaluate_under(partition, each.schedules, line=line))
            elif finding["kind"] == "bound":
                self._raise(part, finding["units"] * data.unit_ns)
            else:
                ended = True
                self._work -= finding["deterministic"]
                if finding["status"] == "INFEASIBLE":
                    self._closed.add(part)
            self.bounds.settle(limits)
        return ended

    def _hint(self, part: Part) -> Partition:
        """Return the best partition that is known from elsewhere, once."""
        family, line = part
        if self._known[part]:
            return ()
        own = [
            each
            for each in self.pool.found.values()
            if self.prepared.family_of.get(each.candidate) in self._ordered(family) and each.candidate.line == line
        ]
        best = min(own, key=lambda each: each.sort_key, default=None)
        return best.candidate.partition if best else ()

    def _raise(self, part: Part, bound_ns: int) -> None:
        """Raise a bound on the partitions that are left: those that are known are no better than the best."""
        best_ns = self._best_ns
        bound_ns = bound_ns if best_ns is None else min(bound_ns, best_ns)
        self._bounds[part] = max(self._bounds[part], bound_ns)
        self._tell(part[0])

    def _settle(self) -> None:
        """Bound what is closed by the best; while nothing fits, none of its partitions does."""
        best_ns = self._best_ns
        for part in self._closed:
            if best_ns is not None:
                self._raise(part, best_ns)
        if best_ns is None:
            open_ones = {family for family, _ in self._bounds.keys() - self._closed}
            closed = {family for family, _ in self._closed} - open_ones
            self.bounds.impossible.update(each for family in closed for each in self._ordered(family))

    def _tell(self, family: Family) -> None:
        """Bound a family by the least of its parts."""
        bound_ns = min(bound_ns for part, bound_ns in self._bounds.items() if part[0] == family)
        self.bounds.rise(family, bound_ns)

    def _ordered(self, family: Family) -> list[Family]:
        """Return a family in each arrangement of its devices."""
        number = len(self.prepared.families.arrangements)
        return [replace(family, arrangement=index) for index in range(number)]

    def _cut_data(self, part: Part) -> CutData:
        """Return the cut problem of a part, into as many stages as the target runs."""
        if part not in self._data:
            (family, line), problem = part, self.prepared.problem
            cuts = self.prepared.cuts(family)
            binding = cuts.memory_can_bind and all(problem.memory_limits_bytes)
            self._data[part] = replace(
                cut_data(cuts, self.bounds.of[family], binding),
                num_stages=self._most_stages(cuts),
                all_stages=problem.space.stages is not None,
                messages=messages(cuts, line=line),
            )
        return self._data[part]

    def _most_stages(self, cuts: FamilyPartitions) -> int:
        """Return the most stages of a family's partitions that the target runs."""
        pipelined = self.pool.runs_config(cuts.family.config, pipelined=True)
        return num_stages(self.prepared, cuts.family) if pipelined else 1
