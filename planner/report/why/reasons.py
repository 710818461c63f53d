"""Why a plan is as it is, with its operators' costs at hand: its boundaries, schedule and replicas; what helps most.

Puts together alternatives to the plan (`planner.report.why.alternatives`) and what its question answers with one
thing changed (`planner.report.why.replanned`). Leaves out what the plan file says by itself
(`planner.report.why.explanation`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planner.plan import Plan
from planner.question.problem import Problem
from planner.report.summary.text import Table, duration, size
from planner.report.why.alternatives import Alternatives, Move, Otherwise
from planner.report.why.replanned import Planner, Question, Replanned, answered, cheap_changes, other_replicas

NUM_CHEAPEST = 3
NUM_SCHEDULES, NUM_BOUNDARIES = 4, 12
"""How much people are shown; the JSON has all."""


@dataclass
class Reasons:
    """What was found; less than all of it where it was interrupted.

    Attributes
    ----------
    plan : Plan
    own_ns : int
        The plan's step with the prices of this profile: its own where it was made from it.
    moves, schedules : list
    replicas, changes : list of Replanned
    interrupted : bool
    """

    plan: Plan
    own_ns: int = 0
    moves: list[Move] = field(default_factory=list)
    schedules: list[Otherwise] = field(default_factory=list)
    replicas: list[Replanned] = field(default_factory=list)
    changes: list[Replanned] = field(default_factory=list)
    interrupted: bool = False

    @property
    def cheapest(self) -> list[Replanned]:
        """The changes that help most, the best first; less where fewer help."""
        found = [(change.gain(self.plan) or 0.0, -i, change) for i, change in enumerate(self.changes)]
        return [change for gain, _, change in sorted(found, key=lambda row: row[:2], reverse=True) if gain > 0][
            :NUM_CHEAPEST
        ]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form; `cost_ns` is what a move adds to the step."""
        return {
            "priced_again_ns": self.own_ns,
            "boundaries": [
                {
                    "from": move.source,
                    "to": move.target,
                    "operators": list(move.operators),
                    "step_time_ns": move.step_time_ns,
                    "cost_ns": move.step_time_ns - self.own_ns,
                    "excess_bytes": move.excess_bytes,
                }
                for move in self.moves
            ],
            "schedules": [
                {
                    "schedule": other.schedule,
                    "step_time_ns": other.step_time_ns,
                    "slower": other.step_time_ns / self.own_ns - 1,
                    "excess_bytes": other.excess_bytes,
                }
                for other in self.schedules
            ],
            "replicas": [each.to_json(self.plan) for each in self.replicas],
            "planned_anew": [each.to_json(self.plan) for each in self.changes],
            "cheapest_changes": [each.to_json(self.plan) for each in self.cheapest],
        }

    def text(self) -> list[str | Table]:
        """Return what people read."""
        said: list[str | Table] = []
        if self.own_ns != self.plan.prediction.step_time_ns:
            said.append(
                f"the plan was made from another profile: with the prices of this one its step is "
                f"{duration(self.own_ns)}, and what follows is held against that"
            )
        said += [self._boundaries()] if self.moves else []
        said += [self._schedules()] if self.schedules else []
        answers = [*self.replicas, *self.changes]
        said += [_replanned(self.plan, "planned anew with one thing changed", answers)] if answers else []
        if self.changes:
            best = "; ".join(f"{each.change} ({_gain(each.gain(self.plan))})" for each in self.cheapest)
            said.append(f"what would help most: {best or 'none of these'}")
        return [*said, *(["interrupted: what is above is what was found by then"] if self.interrupted else [])]

    def _boundaries(self) -> Table:
        rows = sorted(self.moves, key=lambda move: (move.step_time_ns, move.source, move.target))
        more = f"; {len(rows) - NUM_BOUNDARIES} more in --json" if len(rows) > NUM_BOUNDARIES else ""
        return Table(
            ("from > to", "moved", "step", "costs", "over memory"),
            [
                (
                    f"{move.source} > {move.target}",
                    move.operators[-1] + (f" and {len(move.operators) - 1} more" if len(move.operators) > 1 else ""),
                    duration(move.step_time_ns),
                    f"{(move.step_time_ns - self.own_ns) / 1e6:+.3f} ms",
                    size(move.excess_bytes) if move.excess_bytes else "-",
                )
                for move in rows[:NUM_BOUNDARIES]
            ],
            f"why the cuts are where they are: each moved by one operator either way, the cheapest first{more}",
        )

    def _schedules(self) -> Table:
        rows = sorted(self.schedules, key=lambda other: other.step_time_ns)
        return Table(
            ("schedule", "step", "slower", "over memory"),
            [
                (
                    other.schedule,
                    duration(other.step_time_ns),
                    f"{other.step_time_ns / max(1, self.own_ns) - 1:+.2%}",
                    size(other.excess_bytes) if other.excess_bytes else "-",
                )
                for other in rows[:NUM_SCHEDULES]
            ],
            f"the same cut under other schedules than {self.plan.schedule}, the fastest of {len(rows)}",
        )


def reasons(plan: Plan, problem: Problem, planner: Planner, say: Callable[[str], None]) -> Reasons:
    """Return the reasons; what was found by then when it is interrupted.

    Raises
    ------
    DoesNotMatch
        When the profile does not admit the plan's cut.
    """
    near = Alternatives(plan, problem)
    found = Reasons(plan, near.own.step_time_ns)
    try:
        found.moves += near.moves()
        found.schedules += near.schedules()
        replicas, changes = list(other_replicas(plan, problem)), list(cheap_changes(plan, problem))
        limit_s, number = problem.effort.time_limit_s, len(replicas) + len(changes)
        say(f"planning anew {number} times, each at most {limit_s:g} s (--time-limit)")
        for row, questions in ((found.replicas, replicas), (found.changes, changes)):
            _answer(questions, planner, row, say)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _answer(questions: Sequence[Question], planner: Planner, row: list[Replanned], say: Callable[[str], None]) -> None:
    for question in questions:
        each = answered(question, planner)
        if each.plan and each.plan.search.limited_by == "interrupted":
            raise KeyboardInterrupt
        row.append(each)
        say(f"{each.change}: {duration(each.plan.prediction.step_time_ns) if each.plan else 'no plan fits'}")


def _replanned(plan: Plan, title: str, answers: Sequence[Replanned]) -> Table:
    return Table(
        ("change", "asked for by", "step", "samples/s", "strategy"),
        [_row(plan, each) for each in answers],
        title,
    )


def _row(plan: Plan, each: Replanned) -> tuple[str, ...]:
    if each.plan is None:
        return each.change, each.how, "no plan fits", "-", "-"
    said = each.to_json(plan)
    return (
        each.change,
        each.how,
        duration(each.plan.prediction.step_time_ns),
        _gain(each.gain(plan)),
        str(said["strategy"]),
    )


def _gain(gain: float | None) -> str:
    return "-" if gain is None else f"{gain:+.2%}"
