"""What moved from an old plan to a new one: operators between stages, degrees, schedule, micro-batches.

Stages of the two are matched by the operators that they share, the pair that shares most first; what is in no matched
pair has moved. Leaves out times.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property

from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from planner.graph.names import stage_names
from planner.plan import Plan

MOST_VALUES = 8
"""Stages up to which people are told the value of each."""
NUM_NAMED = 4
"""Moves between two stages up to which people are told what moved; beyond, how much."""


class Moved:
    """What a new plan does otherwise than an old one of the same model.

    With its graph people are told the modules that moved, in the model's order; without, operators by the old stages.
    """

    def __init__(self, old: Plan, new: Plan, graph: OperatorGraph | None = None) -> None:
        self.old, self.new = old, new
        held = (name for stage in old.stages for name in stage.operators)
        operators = ((operator.name, operator.module) for operator in graph.operators) if graph else ()
        self.modules = dict(operators) or dict.fromkeys(held, "")

    @cached_property
    def between(self) -> dict[tuple[int, int], list[str]]:
        """Operators that moved, by their old and their new stage, the most first."""
        before, after = _stage_of(self.old), _stage_of(self.new)
        held = Counter((before[name], after[name]) for name in self.modules)
        pairs = sorted(held, key=lambda pair: (-held[pair], pair))
        sources, targets, rows = set[int](), set[int](), dict[tuple[int, int], list[str]]()
        for source, target in pairs:
            if source in sources or target in targets:
                rows[source, target] = []
            else:
                sources.add(source)
                targets.add(target)
        for name in self.modules:
            if (before[name], after[name]) in rows:
                rows[before[name], after[name]].append(name)
        return rows

    @cached_property
    def num_operators(self) -> int:
        """How many operators moved."""
        return sum(map(len, self.between.values()))

    @cached_property
    def changed(self) -> dict[str, tuple[object, object]]:
        """What else differs, old and new; one value a stage where stages differ."""
        both = zip(_choices(self.old).items(), _choices(self.new).values(), strict=True)
        found = {name: (before, after) for (name, before), after in both if before != after}
        follows = {
            "in_flight": found.keys() & {"stages", "schedule"},
            "ranks": found.keys() & {"stages", "data", "tensor", "context"},
            "tensors": self.between.keys(),
        }
        return {name: pair for name, pair in found.items() if not follows.get(name)}

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        rows = [{"from": a, "to": b, "operators": names} for (a, b), names in self.between.items()]
        changed = {name: list(pair) for name, pair in self.changed.items()}
        return {"operators": self.num_operators, "between_stages": rows, "changed": changed}

    def text(self) -> str:
        """Say it in one line."""
        alone = 1 in (len(self.old.stages), len(self.new.stages))  # then there is nothing to move between
        parts = [self._operators()] if self.between and not alone else []
        for name, (before, after) in self.changed.items():
            short = name not in ("in_flight", "ranks", "tensors")
            parts.append(f"{_SAID.get(name, name)} {_value(before)} to {_value(after)}" if short else _SAID[name])
        return "; ".join(parts) or "nothing"

    def _operators(self) -> str:
        text = f"{self.num_operators} of {len(self.modules)} operators changed stage"
        if len(self.between) > NUM_NAMED:
            return text
        paths = [[self.modules[name] or name for name in names] for names in self.between.values()]
        rows = zip(stage_names(paths), self.between.items(), strict=True)
        moves = [f"{len(names)} in {called} from stage {a} to {b}" for called, ((a, b), names) in rows]
        return f"{text} ({', '.join(moves)})"


_SAID = {
    "device_types": "devices by type",
    "microbatch_size": "micro-batch size",
    "microbatches": "micro-batches",
    "microbatch_multiple": "micro-batches an action",
    "in_flight": "other micro-batches in flight",
    "ranks": "stages on other ranks",
    "tensors": "tensors take other ways between stages",
}
"""What people call a choice, where that is not its name; the last three have no more to tell than that."""


def _stage_of(plan: Plan) -> Mapping[str, int]:
    return {name: i for i, stage in enumerate(plan.stages) for name in stage.operators}


def _choices(plan: Plan) -> dict[str, object]:
    """Return what a plan chose."""
    configs = {
        field.name: [getattr(stage.config, field.name) for stage in plan.stages] for field in fields(StageConfig)
    }
    types = [sorted({plan.cluster.device_of(rank).name for rank in stage.ranks}) for stage in plan.stages]
    configs["device_types"] = [" and ".join(names) for names in types]
    configs["microbatch_multiple"] = [stage.microbatch_multiple for stage in plan.stages]
    return {
        "devices": len(plan.orders),
        "stages": len(plan.stages),
        **{name: row[0] if all(each == row[0] for each in row) else row for name, row in configs.items()},
        "schedule": plan.schedule,
        "microbatch_size": plan.batch.microbatch_size,
        "microbatches": plan.batch.num_microbatches,
        "in_flight": list(plan.in_flight),
        "ranks": [list(stage.ranks) for stage in plan.stages],
        "tensors": sorted([edge.source, edge.target, *sorted(edge.tensors)] for edge in plan.edges),
    }


def _value(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    return ", ".join(map(str, value)) if len(value) <= MOST_VALUES else "unlike by stage"
