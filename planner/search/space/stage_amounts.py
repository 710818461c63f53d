"""What stages of the line take and hold, one for each row of families: differences of `LinePrices`.

Leaves out what replicas send and how the line is cut.
"""

import numpy as np

from planner.search.space.division_prices import LinePrices
from planner.search.space.even_stages import Floats, Ints
from planner.search.space.family_rows import FamilyRows
from planner.search.space.replica_prices import StageWeights


class StageAmounts:
    """Amounts of one stage a row, which begins at one position of the line and ends before another.

    Parameters
    ----------
    rows : FamilyRows
    line : LinePrices
    coupled : float
        Part of the shorter of device and host in which the longer waits for it (`TrainingJob`).
    """

    def __init__(self, rows: FamilyRows, line: LinePrices, coupled: float) -> None:
        self.rows, self.line, self._coupled = rows, line, coupled

    def over(self, prefix: Floats, first: Ints, after: Ints) -> Floats:
        """Return the part of each row's division between two positions."""
        base, flat = self.rows.division * prefix.shape[-1], prefix.ravel()
        found: Floats = flat.take(base + after) - flat.take(base + first)
        return found

    def over_way(self, prefix: Floats, first: Ints, after: Ints) -> Floats:
        """Return what depends on recompute, too."""
        base = (self.rows.recompute * prefix.shape[1] + self.rows.division) * prefix.shape[-1]
        flat = prefix.ravel()
        found: Floats = flat.take(base + after) - flat.take(base + first)
        return found

    def times(self, first: Ints, after: Ints) -> tuple[Floats, Floats]:
        """Return F, and all of the backward, of one micro-batch, as the longer of device and host paces them."""
        line = self.line
        added = self.over(line.added, first, after) * (self.rows.count > 1)
        backward = self.over(line.backward, first, after) + self.over_way(line.again, first, after)
        host = self.over(line.host_backward, first, after) + self.over_way(line.host_again, first, after)
        forward = self._paced(self.over(line.forward, first, after), self.over(line.host_forward, first, after))
        return forward, self._paced(backward, host) + added

    def _paced(self, device: Floats, host: Floats) -> Floats:
        """Return what actions take that both have to get through (`costmodel.model.launches.paced_ns`)."""
        found: Floats = np.maximum(device, host) + self._coupled * np.minimum(device, host)
        return found

    def weights(self, first: Ints, after: Ints) -> StageWeights:
        """Return the parameters."""
        line = self.line
        return StageWeights(
            self.over(line.weights, first, after),
            self.over(line.experts, first, after),
            self.over(line.trained, first, after),
            self.over(line.trained_experts, first, after),
            line.unit[self.rows.division],
        )

    def kept(self, first: Ints, after: Ints) -> Floats:
        """Return what is kept of one micro-batch."""
        return self.over_way(self.line.kept, first, after)
