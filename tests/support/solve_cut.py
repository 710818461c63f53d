"""The cut model solved to the end in this process."""

import io
import json

from planner.search.solvers.cpsat.model import Findings
from planner.search.solvers.cpsat.solver import serve
from planner.search.solvers.relaxation.data import CutData


def solve(data: CutData) -> list[dict[str, object]]:
    """Return the findings."""
    stream = io.StringIO()
    request = {"data": data.to_json(), "hint": (), "seconds": 60, "deterministic": 20, "seed": 0,
               "estimates": False}  # fmt: skip
    serve(request, Findings(stream))
    return [json.loads(line) for line in stream.getvalue().splitlines()]
