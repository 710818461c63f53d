"""torch's ``compute_only`` CSV as given stages: its rows are places, and a list says what each stage holds.

Where the orders are those of a schedule of the catalogue the plan says so. Leaves out the CSV itself
(`simulator.torch_csv`).
"""

from collections.abc import Sequence
from pathlib import Path

from costmodel.errors import InvalidInput, PenstockError, UsageError
from costmodel.files import read_json
from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs, StageCost
from planner.export.given import Given, operators_of
from planner.graph.layers import equal_layers
from simulator.schedule import Schedule, chain_edges
from simulator.schedules import build_schedule

KNOWN = ("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "zb-h1", "interleaved-zb", "zb-v")


def given_by_csv(
    source: str, schedule: Schedule, graph: OperatorGraph, config: StageConfig, parts: Path | None
) -> Given:
    """Return the stages that a CSV orders; `parts` lists what each holds, by default equally many layers.

    Raises
    ------
    InvalidInput
        For a list that names something twice, not at all, or that the model does not have.
    UsageError
        Without a list, for layers that the stages do not divide.
    """
    num_stages = schedule.graph.num_stages
    if parts:
        stages = _listed(parts, graph, num_stages)
    else:
        found = equal_layers(graph, num_stages)
        if found is None:
            raise UsageError(
                f"{source} has {num_stages} stages, which do not divide the layers of {graph.name}; give --parts FILE, "
                "a JSON list of what each stage holds (export torch-csv and torchtitan write one)"
            )
        stages = found
    places = tuple(ranks[0] for ranks in schedule.graph.ranks)
    return Given(f"the orders {source}", stages, places, config, _name(schedule), schedule.orders)


def _listed(path: Path, graph: OperatorGraph, num_stages: int) -> tuple[tuple[int, ...], ...]:
    """Read which modules or operators each stage holds."""
    root = read_json(path)
    rows = [node.texts() for node in root.items()]
    if len(rows) != num_stages:
        root.fail(f"{num_stages} lists are needed, one a stage of the CSV; {len(rows)} are given")
    by_part, by_name = operators_of(graph.parts), {name: [i] for name, i in graph.index.items()}
    home: dict[int, int] = {}
    for stage, row in enumerate(rows):
        for name in row:
            if name not in by_part and name not in by_name:
                known = ", ".join(list(dict.fromkeys(graph.parts))[:4])
                raise InvalidInput(
                    f"{path}: /{stage}: {name!r} is no module or operator of {graph.name}; it has {known}"
                )
            for position in by_part.get(name) or by_name[name]:
                if home.setdefault(position, stage) != stage:
                    raise InvalidInput(f"{path}: /{stage}: {name!r} is in stage {home[position]} too; leave one out")
    left = next((i for i in range(len(graph.operators)) if i not in home), -1)
    if left >= 0:
        raise InvalidInput(f"{path}: {graph.parts[left] or graph.operators[left].name!r} is in no stage; add it to one")
    return tuple(tuple(i for i in sorted(home) if home[i] == stage) for stage in range(num_stages))


def _name(schedule: Schedule) -> str:
    """Return the schedule of the catalogue that has these orders, else what they were read as."""
    count = schedule.graph.num_stages
    costs = Costs((StageCost(1, 1, 1),) * count, tuple(chain_edges(count)), schedule.graph.ranks)
    return next((name for name in KNOWN if _orders(name, costs, schedule) == schedule.orders), schedule.name)


def _orders(name: str, costs: Costs, schedule: Schedule) -> Sequence[object]:
    try:
        return build_schedule(name, costs, schedule.num_microbatches).orders
    except PenstockError:  # a placement that the schedule does not run on
        return ()
