"""Which operators of a model some degrees do not divide; a stage that holds one of them is refused.

Leaves out why an operator does not divide (`costmodel.stages.strategies.division`).
"""

from collections.abc import Sequence

from costmodel.errors import UsageError
from costmodel.model.graph import Operator
from costmodel.stages.strategies.division import Degrees, why_whole


class UndividedOperators:
    """Operators by the degrees that do not divide them; of operators that do the same work one is looked at."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._operators = operators
        self._first = {operator.work: operator for operator in reversed(operators)}
        self._known: dict[Degrees, tuple[int, ...]] = {}

    def check(self, operators: Sequence[int], degrees: Degrees) -> None:
        """Refuse degrees that do not divide some of these operators.

        Raises
        ------
        UsageError
            Says why the first of them does not divide.
        """
        if degrees not in self._known:
            refused = {work for work, operator in self._first.items() if why_whole(operator, degrees)}
            rows = enumerate(self._operators) if refused else ()
            self._known[degrees] = tuple(i for i, operator in rows if operator.work in refused)
        for position in self._known[degrees]:
            if position in operators:
                raise UsageError(why_whole(self._operators[position], degrees))
