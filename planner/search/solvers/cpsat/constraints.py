"""Constraints of the cut model, one method a constraint, named by its sentence."""

from ortools.sat.python import cp_model

from planner.search.solvers.cpsat.variables import Linear, Variables
from planner.search.solvers.cpsat.whole_messages import WholeMessages
from planner.search.solvers.relaxation.data import CutData


class Constraints:
    """States what a partition is, what flows, and how early and late each stage can work."""

    def __init__(self, model: cp_model.CpModel, data: CutData, variables: Variables) -> None:
        self.model, self.data, self.at = model, data, variables
        self.stages, self.atoms = range(data.num_stages), range(data.num_atoms)

    def state(self) -> None:
        """Add all constraints."""
        self.every_atom_stands_in_one_stage()
        self.no_atom_stands_before_what_it_reads()
        self.stages_are_filled_from_the_last()
        self.a_stage_takes_the_time_of_its_atoms()
        if self.data.messages:
            WholeMessages(self.model, self.data, self.data.messages, self.at).state()
        else:
            self.a_tensor_crosses_from_its_producer_to_its_readers()
            self.a_transfer_takes_as_long_as_its_largest_tensor()
        self.a_stage_starts_after_those_that_feed_it()
        self.a_gradient_goes_back_through_all_stages_upstream()
        self.all_stages_before_a_bottleneck_come_before_its_stage()
        self.what_pins_keep_apart_shares_no_stage()
        if self.data.host and not self.data.messages:
            self.a_message_takes_host_time_from_both_ends()
        if self.data.limit:
            self.no_rank_holds_more_than_its_memory()

    def every_atom_stands_in_one_stage(self) -> None:
        """Prefixes rise; an atom is inside the stage at which its prefix does."""
        for v in self.atoms:
            for s in self.stages:
                here = self.at.up_to(v, s, len(self.stages)) - self.at.up_to(v, s - 1, len(self.stages))
                self.model.add(self.at.inside[v][s] == here)

    def no_atom_stands_before_what_it_reads(self) -> None:
        """With stages numbered along the graph of stages, that graph can have no cycle."""
        for u, v in self.data.precedence:
            for s in self.stages[:-1]:
                self.model.add_implication(self.at.prefix[v][s], self.at.prefix[u][s])

    def stages_are_filled_from_the_last(self) -> None:
        """Leave the first numbers without work when there are fewer stages: a single sink then has a fixed place."""
        for s in self.stages:
            self.model.add_max_equality(self.at.used[s], [row[s] for row in self.at.inside])
            if s:
                self.model.add_implication(self.at.used[s - 1], self.at.used[s])
        if self.data.all_stages:
            self.model.add(self.at.used[0] == 1)

    def what_pins_keep_apart_shares_no_stage(self) -> None:
        """Let a stage hold atoms of one pattern of each pin."""
        for number, patterns in enumerate(self.data.apart):
            for s in self.stages:
                holds = [self.model.new_bool_var(f"pin_{number}_{i}_{s}") for i in range(len(patterns))]
                for literal, row in zip(holds, patterns, strict=True):
                    for v in row:
                        self.model.add_implication(self.at.inside[v][s], literal)
                self.model.add_at_most_one(holds)

    def a_stage_takes_the_time_of_its_atoms(self) -> None:
        """F and B of a stage are sums over its atoms, and host time for at least one message each way."""
        for s in self.stages:
            hosts = self.at.hosts[s] if self.at.hosts else [0, 0, 0, 0]
            there, back = self.data.host * (hosts[0] + hosts[1]), self.data.host * (hosts[2] + hosts[3])
            if self.data.messages:
                ends = [pair for pair in self.at.pairs if s in pair]
                there, back = (cp_model.LinearExpr.sum([ns[p] for p in ends]) for ns in (self.at.there, self.at.back))
            self.model.add(self.at.forward[s] == self._sum(self.data.forward, s) + there)
            self.model.add(self.at.backward[s] == self._sum(self.data.backward, s) + back)

    def a_tensor_crosses_from_its_producer_to_its_readers(self) -> None:
        """Let something flow between two stages when a producer is in one and a reader in the other."""
        for crossing in self.data.crossings:
            for i, j in self.at.pairs:
                here, there = self.at.inside[crossing.producer][i], self.at.inside[crossing.consumer][j]
                self.model.add_bool_or(here.negated(), there.negated(), self.at.crosses[crossing.level, i, j])
                if crossing.gradient:
                    self.model.add_bool_or(here.negated(), there.negated(), self.at.returns[i, j])

    def a_message_takes_host_time_from_both_ends(self) -> None:
        """Let a stage receive outputs when one feeds it, send gradients when it returns any; the other end likewise."""
        for i, j in self.at.pairs:
            receives, sends = self.at.hosts[j], self.at.hosts[i]
            self.model.add_implication(self.at.feeds[i, j], receives[0])
            self.model.add_implication(self.at.feeds[i, j], sends[1])
            self.model.add_implication(self.at.returns[i, j], sends[2])
            self.model.add_implication(self.at.returns[i, j], receives[3])

    def a_transfer_takes_as_long_as_its_largest_tensor(self) -> None:
        """Take the time of the highest level that flows; all tensors of an edge travel together."""
        levels = self.data.levels
        for i, j in self.at.pairs:
            for k in range(1, len(levels)):
                self.model.add_implication(self.at.crosses[k, i, j], self.at.crosses[k - 1, i, j])
            rises = [(levels[k] - (levels[k - 1] if k else 0)) * self.at.crosses[k, i, j] for k in range(len(levels))]
            self.model.add(self.at.transfer[i, j] == cp_model.LinearExpr.sum(rises))

    def a_stage_starts_after_those_that_feed_it(self) -> None:
        """Make the head of a stage the longest forward path before it."""
        for i, j in self.at.pairs:
            path = self.at.head[i] + self.at.forward[i] + self.at.transfer[i, j]
            self.model.add(self.at.head[j] >= path).only_enforce_if(self.at.feeds[i, j])

    def a_gradient_goes_back_through_all_stages_upstream(self) -> None:
        """Make the tail of a stage the longest backward path upstream of it, or its own optimizer step."""
        for s in self.stages:
            self.model.add(self.at.tail[s] >= self._sum(self.data.closing, s))
        for i, j in self.at.pairs:
            path = self.at.tail[i] + self.at.backward[i] + self.at.transfer[i, j]
            self.model.add(self.at.tail[j] >= path).only_enforce_if(self.at.returns[i, j])

    def all_stages_before_a_bottleneck_come_before_its_stage(self) -> None:
        """Redundant: an atom that all others lead to or come from makes its stage wait for all before it.

        The solver else learns this edge by edge, and the one sink of a graph is such an atom.
        """
        for s in self.stages[1:]:
            self._starts_after_all_before(s, self.data.bottlenecks, self.at.head, self.at.forward)
            self._starts_after_all_before(s, self.data.gradient_bottlenecks, self.at.tail, self.at.backward)

    def _starts_after_all_before(
        self, stage: int, bottlenecks: tuple[int, ...], paths: list[cp_model.IntVar], works: list[cp_model.IntVar]
    ) -> None:
        if not bottlenecks:
            return
        always = stage == len(self.stages) - 1 and bottlenecks[-1] in self.data.sinks and len(self.data.sinks) == 1
        literal = None if always else self._any_inside(bottlenecks, stage)
        for j in range(stage):
            row = self.model.add(paths[stage] >= paths[j] + works[j] + self.data.levels[0] * self.at.used[j])
            if literal is not None:
                row.only_enforce_if(literal)

    def _any_inside(self, atoms: tuple[int, ...], stage: int) -> cp_model.IntVar:
        literal = self.model.new_bool_var(f"bottleneck_{stage}")
        self.model.add_max_equality(literal, [self.at.inside[v][stage] for v in atoms])
        return literal

    def no_rank_holds_more_than_its_memory(self) -> None:
        """Keep static bytes and those of all micro-batches in flight within the limit."""
        flying = InFlight(self.model, self.data, self.at)
        for s in self.stages:
            static, kept = self._held(s, in_flight=False), self._held(s, in_flight=True)
            for count, literal in flying.at_least(s):
                within = self.model.add(static + count * kept <= self.data.limit)
                if literal is not None:
                    within.only_enforce_if(literal)

    def _held(self, stage: int, *, in_flight: bool) -> Linear:
        total = []
        for number, held in enumerate(self.data.held):
            if held.in_flight is in_flight:
                total.append(held.size * self._holds(number, stage))
        return cp_model.LinearExpr.sum(total)

    def _holds(self, number: int, stage: int) -> Linear:
        """Literal that is true when the stage holds something (it may be true without need, which costs memory)."""
        held = self.data.held[number]
        if len(held.atoms) == 1 and not held.readers:
            return self.at.inside[held.atoms[0]][stage]
        holds = self.model.new_bool_var(f"holds_{number}_{stage}")
        for atom in held.atoms:
            self.model.add_implication(self.at.inside[atom][stage], holds)
        for atom in set(held.readers) - {held.producer}:
            here = self.at.inside[atom][stage].negated()
            self.model.add_bool_or(here, self.at.inside[held.producer][stage], holds)
        return holds

    def _sum(self, amounts: tuple[int, ...], stage: int) -> Linear:
        return cp_model.LinearExpr.sum([amounts[v] * self.at.inside[v][stage] for v in self.atoms if amounts[v]])


class InFlight:
    """Micro-batches that each stage keeps in flight."""

    def __init__(self, model: cp_model.CpModel, data: CutData, variables: Variables) -> None:
        self.model, self.data, self.at = model, data, variables
        self.depth = [model.new_int_var(1, data.num_stages, f"depth_{s}") for s in range(data.num_stages)]
        if data.in_flight == "depth":
            for i, j in variables.pairs:
                model.add(self.depth[i] >= self.depth[j] + 1).only_enforce_if(variables.feeds[i, j])

    def at_least(self, stage: int) -> list[tuple[int, cp_model.IntVar | None]]:
        """Return (count, literal): when the literal holds, the stage keeps at least `count` micro-batches."""
        position = self.data.num_stages - stage
        if self.data.in_flight != "depth":
            fixed = {"all": self.data.num_microbatches, "line": position, "one": 1}[self.data.in_flight]
            return [(min(fixed, self.data.num_microbatches), None)]
        found: list[tuple[int, cp_model.IntVar | None]] = [(1, None)]
        for count in range(2, min(self.data.num_microbatches, position) + 1):
            literal = self.model.new_bool_var(f"keeps_{stage}_{count}")
            self.model.add(self.depth[stage] < count).only_enforce_if(literal.negated())
            found.append((count, literal))
        return found
