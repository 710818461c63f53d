"""What the process for bounds tells of one family while its bound rises, request by request.

Leaves out how a bound is proved (`planner.search.solvers.lattice.bound`), and which family is asked for.
"""

from typing import Any

from planner.graph.atoms import Partition
from planner.search.budget import Deadline
from planner.search.solvers.cpsat.model import Findings
from planner.search.solvers.lattice.bound import LatticeBound, Proved
from planner.search.solvers.lattice.estimate import estimate_of
from planner.search.solvers.lattice.replicas import ReplicasBound
from planner.search.solvers.relaxation.data import CutData


class BoundSession:
    """The bound of a family's step, or of its estimate, and the least estimate that was met.

    Parameters
    ----------
    data : CutData
    bound : LatticeBound or ReplicasBound
        Of the cuts of that problem, or of stages with replicas of their own number.
    estimate : bool
        Whether it is the estimate that is bounded.
    """

    def __init__(self, data: CutData, bound: LatticeBound | ReplicasBound, *, estimate: bool) -> None:
        self._data, self.bound, self._estimates = data, bound, estimate
        self._least_ns = self._bound_ns = 0

    def tell(self, request: dict[str, Any], found: Findings) -> None:
        """Write cuts and bounds as they come, and in the end whether no more will."""
        limits, work = Deadline(request["seconds"]), 0
        best_ns, until_ns = request["best_ns"], request["until_ns"]
        if self._estimates:
            best_ns = self._met(tuple(request["estimate"]))
            until_ns = best_ns
        ended = True
        for each in self.bound.rise(best_ns):
            work += each.work
            self._write(each, found)
            if self._bound_ns >= until_ns or work > request["work"] or limits.expired:
                ended = False
                break
        found.write(kind="end", ended=ended or self._estimates, work=work)

    def _met(self, partition: Partition) -> int:
        """Return the least estimate of all cuts that were met, this one included."""
        estimate_ns = estimate_of(self._data, partition) * self._data.unit_ns
        self._least_ns = min(self._least_ns or estimate_ns, estimate_ns)
        return self._least_ns

    def _write(self, each: Proved, found: Findings) -> None:
        rises, self._bound_ns = each.bound_ns > self._bound_ns, max(each.bound_ns, self._bound_ns)
        if self._estimates:
            least_ns = self._least_ns
            if each.partition:
                self._met(each.partition)
            if rises or self._least_ns < least_ns:
                found.write(kind="estimate", least_ns=self._least_ns, ns=min(self._bound_ns, self._least_ns))
        elif each.partition:
            found.write(kind="partition", partition=each.partition)
        if rises and not self._estimates:
            found.write(kind="bound", ns=self._bound_ns)
