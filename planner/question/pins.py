"""Pins: what a person fixes before the search begins (``plan --pin FILE``).

``[[together]]`` joins operators into one stage; ``[[apart]]`` lets no two of its patterns into one stage; the search
keeps to both. ``[[stage]]`` gives one stage whole: operators, ranks and configuration; what no stage names is searched.
Leaves out what pinned stages cost (`planner.candidate.price`).
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import Node, read_toml
from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import CONFIG, StageConfig
from planner.graph.atoms import Apart

WILD = frozenset("*?[")
"""Characters by which a pattern may match other words than itself."""
REST = ("*",)
"""The patterns of a stage that takes every operator which no other stage names."""


@dataclass(frozen=True, slots=True)
class Group:
    """Patterns of operator names or module paths, and where they are in the file."""

    patterns: tuple[str, ...]
    place: str

    def rows(self, graph: OperatorGraph) -> list[list[int]]:
        """Return the positions of the operators that each pattern matches.

        Raises
        ------
        InvalidInput
            For a pattern that matches nothing; names what is nearest.
        """
        known: dict[str, list[int]] = {}
        for position, operator in enumerate(graph.operators):
            for word in {operator.name, operator.module}:
                known.setdefault(word, []).append(position)
        plain = {pattern for pattern in self.patterns if pattern in known and not set(pattern) & WILD}
        return [known[p] if p in plain else self._matching(p, graph) for p in self.patterns]

    def _matching(self, pattern: str, graph: OperatorGraph) -> list[int]:
        found = [
            position
            for position, operator in enumerate(graph.operators)
            if fnmatchcase(operator.name, pattern) or fnmatchcase(operator.module, pattern)
        ]
        if not found:
            known = dict.fromkeys(name for o in graph.operators for name in (o.module, o.name) if name)
            near = difflib.get_close_matches(pattern.rstrip("*"), known, 3, 0.4) or list(known)[:3]
            raise InvalidInput(
                f"{self.place}: the pattern {pattern!r} matches no operator and no module; near are {', '.join(near)}"
            )
        return found


@dataclass(frozen=True, slots=True)
class StagePin:
    """One stage: its operators, its ranks (none given: the lowest that no other pin names), how it runs.

    `in_flight` are the micro-batches that each replica keeps under ``graph-auto``; 0 leaves them open.
    """

    group: Group
    ranks: tuple[int, ...] = ()
    config: StageConfig | None = None
    microbatch_multiple: int = 1
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Pins:
    """A pin file's content.

    Attributes
    ----------
    together, apart : tuple of Group
    stages : tuple of StagePin
        The whole plan, when they name every operator.
    """

    together: tuple[Group, ...] = ()
    apart: tuple[Group, ...] = ()
    stages: tuple[StagePin, ...] = ()

    def __post_init__(self) -> None:
        if not self.together and not self.apart and not self.stages:
            raise InvalidInput("no pin; give [[together]], [[apart]] or [[stage]], or leave --pin out")

    def pairs(self, graph: OperatorGraph) -> Iterator[tuple[int, int]]:
        """Yield pairs of operators that share a stage."""
        for group in self.together:
            members = sorted({position for row in group.rows(graph) for position in row})
            for other in members[1:]:
                yield members[0], other

    def kept_apart(self, graph: OperatorGraph, piece_of: Sequence[int]) -> Apart:
        """Return the pieces (of operators that share a stage) that the patterns of each ``[[apart]]`` match.

        Each ``[[stage]]`` is apart from all else.

        Raises
        ------
        InvalidInput
            When a piece holds operators of two patterns.
        """
        found = []
        for group in self.apart:
            rows: list[dict[int, None]] = [{} for _ in group.patterns]
            pattern_of: dict[int, int] = {}
            for number, positions in enumerate(group.rows(graph)):
                for position in positions:
                    other = pattern_of.setdefault(piece_of[position], number)
                    if other != number:
                        raise InvalidInput(
                            f"{group.place}: {graph.operators[position].name!r} is to be apart from what "
                            f"{group.patterns[other]!r} matches, and no cut divides the two (one operator, changed in "
                            "place, or put together by [[together]]); make the patterns narrower"
                        )
                    rows[number][piece_of[position]] = None
            found.append(tuple(tuple(sorted(row)) for row in rows))
        for members in self.stage_rows(graph) if self.stages else ():
            own = {piece_of[position] for position in members}
            found.append((tuple(sorted(own)), tuple(sorted(set(piece_of) - own))))
        return tuple(found)

    def stage_rows(self, graph: OperatorGraph) -> tuple[tuple[int, ...], ...]:
        """Return the positions of each pinned stage's operators, rising; stages numbered as in the file.

        Raises
        ------
        InvalidInput
            When an operator is in two stages, or `together` or `apart` is broken.
        """
        found: dict[int, int] = {}
        for stage, pin in enumerate(self.stages):
            if pin.group.patterns != REST:
                for position in sorted({p for row in pin.group.rows(graph) for p in row}):
                    self._put(found, graph, position, stage)
        self._put_rest(found, graph)
        self._check_together(graph, found)
        self._check_apart(graph, found)
        rows: list[list[int]] = [[] for _ in self.stages]
        for position in sorted(found):
            rows[found[position]].append(position)
        return tuple(map(tuple, rows))

    def to_json(self) -> dict[str, object]:
        """Return the JSON form for a plan's provenance."""
        return {
            "together": [list(group.patterns) for group in self.together],
            "apart": [list(group.patterns) for group in self.apart],
            "stage": [list(pin.group.patterns) for pin in self.stages],
        }

    def _put(self, found: dict[int, int], graph: OperatorGraph, position: int, stage: int) -> None:
        other = found.setdefault(position, stage)
        if other != stage:
            raise InvalidInput(
                f"{self.stages[stage].group.place}: the operator {graph.operators[position].name!r} is in stage "
                f"{other} already; an operator is in one stage: make the patterns narrower"
            )

    def _put_rest(self, found: dict[int, int], graph: OperatorGraph) -> None:
        takers = [stage for stage, pin in enumerate(self.stages) if pin.group.patterns == REST]
        left = [position for position in range(len(graph.operators)) if position not in found]
        if len(takers) > 1 or (takers and not left):
            raise InvalidInput(
                f"{self.stages[takers[-1]].group.place}: nothing is left for this stage; ['*'] takes what no other "
                "stage names, in one stage alone"
            )
        if takers:
            found |= dict.fromkeys(left, takers[0])

    def _check_together(self, graph: OperatorGraph, stages: Mapping[int, int]) -> None:
        for group in self.together:
            held = {stages.get(position, -1): position for row in group.rows(graph) for position in row}
            if len(held) > 1:
                names = [graph.operators[position].name for position in held.values()]
                raise InvalidInput(
                    f"{group.place}: {names[0]!r} and {names[1]!r} are to be together, and [[stage]] puts them in the "
                    f"stages {sorted(held)} (-1: none); change one of the two"
                )

    def _check_apart(self, graph: OperatorGraph, stages: Mapping[int, int]) -> None:
        for group in self.apart:
            held: dict[int, int] = {}
            for number, row in enumerate(group.rows(graph)):
                for position in filter(stages.__contains__, row):
                    if held.setdefault(stages[position], number) != number:
                        raise InvalidInput(
                            f"{group.place}: {graph.operators[position].name!r} is to be apart from what "
                            f"{group.patterns[held[stages[position]]]!r} matches, and [[stage]] puts both in stage "
                            f"{stages[position]}; change one of the two"
                        )


def read_pins(path: str | Path) -> Pins:
    """Read a pin file (TOML); see `costmodel.files` for what is refused."""
    try:
        root = read_toml(path)
    except InvalidInput as error:
        if not Path(path).is_file():
            raise
        raise InvalidInput(f'{error}; pins are tables (docs/planning.md, "Pins"), a plan is for --from') from None
    tables = {name: node.items() for name, node in root.members((), ("together", "apart", "stage")).items()}
    together = tuple(_group(node, node.members(("operators",))["operators"]) for node in tables.get("together", ()))
    apart = tuple(_group(node, node.members(("operators",))["operators"]) for node in tables.get("apart", ()))
    stages = tuple(map(_stage, tables.get("stage", ())))
    return root.build(lambda: Pins(together, apart, stages))


def _group(table: Node, operators: Node) -> Group:
    patterns = operators.texts()
    if not patterns:
        operators.fail("at least one pattern is needed")
    return Group(patterns, f"{table.file}: {table.pointer}")


def _stage(node: Node) -> StagePin:
    fields = node.members(("operators",), ("ranks", "config", "microbatch_multiple", "in_flight"))
    ranks = fields["ranks"].integers() if "ranks" in fields else ()
    if "ranks" in fields and len(set(ranks)) != max(1, len(ranks)):
        fields["ranks"].fail("a stage needs at least one rank, each named once")
    return StagePin(
        _group(node, fields["operators"]),
        ranks,
        _config(fields["config"], max(1, len(ranks))) if "config" in fields else None,
        fields["microbatch_multiple"].integer(1) if "microbatch_multiple" in fields else 1,
        fields["in_flight"].integer(1) if "in_flight" in fields else 0,
    )


def _config(node: Node, num_ranks: int) -> StageConfig:
    """Read a configuration; where its data is left out, that is what tensor and context leave of the ranks."""
    given = {key: value.value for key, value in node.entries().items()}
    inside = 1
    for name in ("tensor", "context"):
        value = given.get(name, 1)
        inside *= value if isinstance(value, int) and value > 0 else 1
    config = CONFIG.read(Node({"data": max(1, num_ranks // inside), **given}, node.pointer, node.file))
    size = config.num_ranks
    if size != num_ranks:
        node.fail(f"the stage has {num_ranks} ranks, and data x tensor x context are {size}; make the two equal")
    return config
