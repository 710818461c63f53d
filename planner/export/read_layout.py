"""Megatron-LM's pipeline layout as given stages: E, t, m and L are found among the model's modules.

With layers that predict further tokens the norm behind the last layer stays with that, as in Megatron. Of an empty
stage nothing is left but its place in the order in which Megatron works: values pass it by. Leaves out the grammar
(`planner.graph.layout`).
"""

from dataclasses import replace

from costmodel.errors import DoesNotMatch, UsageError
from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from planner.export.given import Given, operators_of
from planner.graph.layout import Rows, layout_problem, parse_layout, part_letters
from simulator.schedules import build_schedule
from simulator.schedules.kind import Orders
from simulator.uniform import uniform_costs


def read_layout(text: str, graph: OperatorGraph, num_places: int, config: StageConfig, num_microbatches: int) -> Given:
    """Return the stages of a layout.

    Parameters
    ----------
    text : str
    graph : OperatorGraph
    num_places : int
        Megatron's pipeline size.
    config : StageConfig
    num_microbatches : int
        Of one replica.

    Raises
    ------
    InvalidInput
        For what is no layout.
    UsageError
        For a layout that breaks a rule of Megatron's for its number of pipeline positions.
    DoesNotMatch
        When the model has other layers.
    """
    return read_rows(parse_layout(text.strip()), text.strip(), graph, num_places, config, num_microbatches)


def read_rows(
    rows: Rows, text: str, graph: OperatorGraph, num_places: int, config: StageConfig, num_microbatches: int
) -> Given:
    """Return the stages of a layout that was read, `text` for people; see `read_layout`."""
    wrong = layout_problem(rows, num_places)
    if wrong:
        raise UsageError(f"the layout {text!r} on {num_places} places (--stages) has {wrong}; Megatron refuses that")
    stages = stages_of_rows(rows, graph)
    held = [stage for stage, row in enumerate(rows) if row]
    schedule = "interleaved-1f1b" if len(rows) > num_places else "1f1b"
    used = sorted({stage % num_places for stage in held})
    return Given(
        f"the layout {text}",
        tuple(stages[stage] for stage in held),
        tuple(used.index(stage % num_places) for stage in held),
        config,
        schedule,
        () if len(held) == len(rows) else _without_empty(rows, num_places, schedule, num_microbatches),
    )


def stages_of_rows(rows: Rows, graph: OperatorGraph) -> list[tuple[int, ...]]:
    """Return the operators of stages that hold these letters; `DoesNotMatch` where the model has other layers."""
    letters, positions = part_letters(graph.parts), operators_of(graph.parts)
    if not letters:
        raise DoesNotMatch(f"the layers of {graph.name} are not one list of modules, which a layout divides")
    left = {letter: [part for part, own in letters.items() if own == letter] for letter in "EtmL"}
    for letter, name in (("t", "layers"), ("m", "layers for multi-token prediction")):
        found = "".join(rows).count(letter)
        if found != len(left[letter]):
            raise DoesNotMatch(
                f"the layout has {found} {letter!r}, and {graph.name} has {len(left[letter])} {name}; give the "
                "profile of the model that it is for"
            )
    norms = [part for part in left["L"] if all("norm" in graph.operators[i].kind for i in positions[part])]
    early = norms if left["m"] else []
    left["L"] = [part for part in left["L"] if part not in early]
    last = max(stage for stage, row in enumerate(rows) if "t" in row)
    stages = []
    for stage, row in enumerate(rows):
        parts = [part for letter in row for part in (left[letter] if letter in "EL" else [left[letter].pop(0)])]
        parts += early if stage == last else []
        stages.append(tuple(sorted(position for part in parts for position in positions[part])))
    return stages


def _without_empty(rows: Rows, num_places: int, schedule: str, num_microbatches: int) -> Orders:
    """Return Megatron's orders without what empty stages do, stages numbered anew."""
    time_ns = len(rows)  # of a rank's whole work: orders do not depend on it
    costs = uniform_costs(num_places, len(rows) // num_places, time_ns, time_ns, time_ns)
    number = {stage: i for i, stage in enumerate(stage for stage, row in enumerate(rows) if row)}
    orders = (
        tuple(replace(action, stage=number[action.stage]) for action in order if action.stage in number)
        for order in build_schedule(schedule, costs, num_microbatches).orders
    )
    return tuple(filter(None, orders))
