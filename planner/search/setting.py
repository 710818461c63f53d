"""What every planner starts from: one evaluator a micro-batch size, bounds that need no search, the scope.

Leaves out how plans are found.
"""

from dataclasses import dataclass
from functools import cached_property

from planner.prepare import Atoms, prepare
from planner.problem import Problem
from planner.search.closed_form import closed_form_ns
from planner.search.cut.build import cut_data
from planner.search.cut.data import CutData
from planner.search.evaluate import Evaluator
from planner.thinning import thin


@dataclass(frozen=True)
class Setting:
    """A problem with its atoms."""

    problem: Problem

    @cached_property
    def atoms(self) -> Atoms:
        """The pieces between which cuts are sought."""
        graph, pins = self.problem.profile.graph, self.problem.pins
        atoms = prepare(graph, pins.pairs(graph) if pins else ())
        evaluator = Evaluator(self.problem, atoms, self.problem.microbatch_sizes[-1])
        sizes = [evaluator.pricing.model.tensor_bytes(tensor) for tensor in graph.tensors]
        return thin(atoms, evaluator.work_ns, sizes, apart=evaluator.apart)

    @cached_property
    def evaluators(self) -> dict[int, Evaluator]:
        """An evaluator for each micro-batch size, the one with the lowest bound first."""
        each = {size: Evaluator(self.problem, self.atoms, size) for size in self.problem.microbatch_sizes}
        return dict(sorted(each.items(), key=lambda item: (closed_form_ns(self._data(item[1])), item[0])))

    def _data(self, evaluator: Evaluator) -> CutData:
        return cut_data(evaluator, 0, binding=False)

    @cached_property
    def closed_forms_ns(self) -> dict[int, int]:
        """Lower bound at each micro-batch size over all cuts."""
        return {size: closed_form_ns(self._data(evaluator)) for size, evaluator in self.evaluators.items()}

    def cut_data(self, microbatch_size: int) -> CutData:
        """Return the cut problem of a micro-batch size."""
        evaluator = self.evaluators[microbatch_size]
        binding = evaluator.memory_can_bind and all(self.problem.memory_limits_bytes)
        return cut_data(evaluator, self.closed_forms_ns[microbatch_size], binding)

    @cached_property
    def scope(self) -> str:
        """What the bound ranges over, in words."""
        problem = self.problem
        sizes = ", ".join(map(str, sorted(problem.microbatch_sizes)))
        text = (
            f"cuts between {len(self.atoms)} atoms of {len(problem.profile.graph.operators)} operators, one device a "
            f"stage, at most {problem.num_stages} stages, micro-batch size {sizes.replace(', ', ' or ')}, schedules "
            "that run F and whole B with one stage a rank"
        )
        if problem.pins:
            text += f", [[together]] pins: {len(problem.pins.together)}, [[apart]] pins: {len(problem.pins.apart)}"
        if any(evaluator.memory_can_bind for evaluator in self.evaluators.values()):
            limit = max(problem.memory_limits_bytes)
            text += f", at least the micro-batches in flight of {problem.schedules[0]}, {limit} bytes a rank"
        return text
