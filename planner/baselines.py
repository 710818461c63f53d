"""Plans to compare with: one device, and stages in one line cut in equal parts.

`single` puts everything on one device; `uniform` cuts one depth-first order into equal numbers of
operators, `parameters` into equal bytes of parameters. Each takes the best micro-batch size and schedule
for its cut. Leaves out any search for a better cut.
"""

from collections.abc import Callable, Sequence

from planner.problem import Problem, Report
from planner.search.evaluate import GRAPH, LINE, Evaluator
from planner.search.incumbent import Incumbent
from planner.search.orders import orders
from planner.search.setting import Setting

Weigh = Callable[[Evaluator], Sequence[int]]


def single(problem: Problem, report: Report | None) -> tuple[Setting, Incumbent]:
    """Put the whole model on one device."""
    setting, found = Setting(problem), Incumbent(problem.schedules, report)
    for evaluator in setting.evaluators.values():
        found.offer([evaluator.evaluate((0,) * len(setting.atoms), shape=GRAPH)])
    found.say("single device")
    return setting, found


def equal_parts(problem: Problem, report: Report | None, weigh: Weigh) -> tuple[Setting, Incumbent]:
    """Cut one order so that each stage gets about the same weight."""
    setting, found = Setting(problem), Incumbent(problem.schedules, report)
    for evaluator in setting.evaluators.values():
        order = orders(setting.atoms, evaluator.work_ns, 0, problem.seed)[0]
        weights = weigh(evaluator)
        stages = split_by_weight([weights[atom] for atom in order], problem.num_stages)
        partition = [0] * len(order)
        for atom, stage in zip(order, stages, strict=True):
            partition[atom] = stage
        found.offer(evaluator.evaluate(tuple(partition), name, LINE) for name in problem.schedules)
    found.say("equal parts")
    return setting, found


def num_operators(evaluator: Evaluator) -> list[int]:
    """Operators of each atom."""
    return [len(members) for members in evaluator.atoms.members]


def parameter_bytes(evaluator: Evaluator) -> list[int]:
    """Bytes of the parameters that each atom reads."""
    operators = evaluator.atoms.graph.operators
    return [sum(operators[i].parameter_bytes for i in members) for members in evaluator.atoms.members]


def split_by_weight(weights: Sequence[int], num_parts: int) -> list[int]:
    """Part of each item: the part in which the middle of its weight falls; parts without items are left out."""
    total = sum(weights) or 1
    before, raw = 0, []
    for weight in weights:
        middle = 2 * before + weight
        raw.append(min(num_parts - 1, middle * num_parts // (2 * total)))
        before += weight
    number = {part: i for i, part in enumerate(dict.fromkeys(raw))}
    return [number[part] for part in raw]
