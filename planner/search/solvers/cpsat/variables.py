"""Variables of the cut model.

Prefix variables tell the stage of an atom: is it in one of the stages 0 to s? Precedence is then an
implication between two of them, and work before a cut is linear.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

from ortools.sat.python import cp_model

from planner.search.solvers.relaxation.data import SLOPE, CutData, SizeTime

Linear = Any  # ortools names no type for its linear expressions


class Variables:
    """Variables of one model.

    Attributes
    ----------
    prefix : list of list of literals
        ``prefix[v][s]``: atom v is in one of the stages 0 to s, for s up to the last but one.
    inside : list of list of literals
        ``inside[v][s]``: atom v is in stage s.
    used : list of literals
        Whether each stage has an atom.
    crosses : dict
        ``crosses[k, i, j]``: something whose transfer takes level k or more flows from stage i to stage j.
    feeds, returns : dict
        ``feeds[i, j]``: anything flows from stage i to stage j; ``returns[i, j]``: a gradient flows back.
    hosts : list of 4 literals
        Whether each stage receives outputs, sends outputs, receives gradients, sends gradients.
    transfer : dict
        ``transfer[i, j]``: time from the end of stage i to the start of stage j.
    there, back : dict
        ``there[i, j]``: host time that outputs from stage i to stage j take from either; ``back``: gradients back.
        Where `CutData.messages` is given, and there are no `crosses` and `hosts`.
    forward, backward : list of integer variables
        F and B of each stage.
    head, tail : list of integer variables
        Longest forward path before each stage, longest backward path upstream of it.
    """

    def __init__(self, model: cp_model.CpModel, data: CutData) -> None:
        stages, atoms = range(data.num_stages), range(data.num_atoms)
        sent = data.messages
        self.pairs = list(pairwise(stages) if sent and sent.line else combinations(stages, 2))
        self.prefix = [[model.new_bool_var(f"prefix_{v}_{s}") for s in stages[:-1]] for v in atoms]
        self.inside = [[model.new_bool_var(f"inside_{v}_{s}") for s in stages] for v in atoms]
        self.used = [model.new_bool_var(f"used_{s}") for s in stages]
        levels = range(0 if sent else len(data.levels))
        self.crosses = {(k, i, j): model.new_bool_var(f"crosses_{k}_{i}_{j}") for k in levels for i, j in self.pairs}
        self.feeds = {
            (i, j): model.new_bool_var(f"feeds_{i}_{j}") if sent else self.crosses[0, i, j] for i, j in self.pairs
        }
        self.returns = {(i, j): model.new_bool_var(f"returns_{i}_{j}") for i, j in self.pairs}
        self.hosts = [[model.new_bool_var(f"host_{k}_{s}") for k in range(4)] for s in stages if data.host and not sent]
        most, ends = data.levels[-1], 2 * data.host
        if sent:
            most, ends = _most(data, sent.transfer), 2 * data.num_stages * _most(data, sent.host)
        self.transfer = {(i, j): model.new_int_var(0, most, f"transfer_{i}_{j}") for i, j in self.pairs}
        self.there = {(i, j): model.new_int_var(0, ends, f"there_{i}_{j}") for i, j in self.pairs if sent}
        self.back = {(i, j): model.new_int_var(0, ends, f"back_{i}_{j}") for i, j in self.pairs if sent}
        work = sum(data.forward) + sum(data.backward) + sum(data.again) + sum(data.closing) + 2 * ends * len(stages)
        longest = work + (data.num_stages - 1) * most
        self.forward = [model.new_int_var(0, sum(data.forward) + ends, f"forward_{s}") for s in stages]
        self.backward = [model.new_int_var(0, sum(data.backward) + ends, f"backward_{s}") for s in stages]
        self.head = [model.new_int_var(0, longest, f"head_{s}") for s in stages]
        self.tail = [model.new_int_var(0, longest, f"tail_{s}") for s in stages]
        self.horizon = data.num_microbatches * work + 2 * longest

    def up_to(self, atom: int, stage: int, num_stages: int) -> Linear:
        """Whether an atom is in one of the stages up to this one."""
        return 1 if stage == num_stages - 1 else 0 if stage < 0 else self.prefix[atom][stage]


def _most(data: CutData, times: Sequence[SizeTime]) -> int:
    """Return the most units that a message could take."""
    whole = sum(tensor.size for tensor in data.messages.tensors) if data.messages else 0
    return max((time.fixed_ns + whole * time.slope // SLOPE for time in times), default=0) // data.unit_ns + 1
