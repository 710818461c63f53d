"""Messages as they are priced: all tensors of an edge travel as one, and it takes the time of its bytes.

Constraints of the proof (`planner.search.bounders.proof`), for graphs of stages alone or for lines alone; what the
cut model else says of a message holds for both, and counts its largest tensor. Leaves out which ranks a message
joins.
"""

from collections.abc import Sequence

from ortools.sat.python import cp_model

from planner.search.solvers.cpsat.variables import Linear, Variables
from planner.search.solvers.relaxation.data import SLOPE, CutData, SentTensors, SizeTime

Pair = tuple[int, int]


class WholeMessages:
    """States which tensors each edge carries, and what they take together."""

    def __init__(self, model: cp_model.CpModel, data: CutData, messages: SentTensors, variables: Variables) -> None:
        self.model, self.data, self.messages, self.at = model, data, messages, variables
        self.sent = {
            (number, pair): model.new_bool_var(f"sent_{number}_{pair[0]}_{pair[1]}")
            for number in range(len(messages.tensors))
            for pair in variables.pairs
        }

    def state(self) -> None:
        """Add all constraints."""
        self.a_tensor_goes_where_it_is_read()
        self.an_edge_is_there_when_a_tensor_goes()
        for pair in self.at.pairs:
            self.a_message_takes_the_time_of_its_bytes(pair)

    def a_tensor_goes_where_it_is_read(self) -> None:
        """Send it from its producer's stage to each reader's, or across every border between the two."""
        for number, tensor in enumerate(self.messages.tensors):
            for pair in self.at.pairs:
                for consumer in tensor.consumers:
                    self.model.add_bool_or(*self._stays(tensor.producer, consumer, pair), self.sent[number, pair])

    def _stays(self, producer: int, consumer: int, pair: Pair) -> list[Linear]:
        """Return literals one of which is true unless the way from a producer to a consumer leads over an edge."""
        source, target = pair
        if self.messages.line:
            return [self.at.prefix[producer][source].negated(), self.at.prefix[consumer][source]]
        return [self.at.inside[producer][source].negated(), self.at.inside[consumer][target].negated()]

    def an_edge_is_there_when_a_tensor_goes(self) -> None:
        """Let a gradient come back where one of these has any."""
        for number, tensor in enumerate(self.messages.tensors):
            for pair in self.at.pairs:
                self.model.add_implication(self.sent[number, pair], self.at.feeds[pair])
                if tensor.gradient:
                    self.model.add_implication(self.sent[number, pair], self.at.returns[pair])

    def a_message_takes_the_time_of_its_bytes(self, pair: Pair) -> None:
        """On its way, and of either end for outputs and for gradients; a message without a byte takes no way."""
        tensors = list(enumerate(self.messages.tensors))
        moves = self.model.new_bool_var(f"moves_{pair[0]}_{pair[1]}")
        for number, tensor in tensors:
            if tensor.size:
                self.model.add_implication(self.sent[number, pair], moves)
        whole = [tensor.size * self.sent[number, pair] for number, tensor in tensors]
        back = [tensor.size * self.sent[number, pair] for number, tensor in tensors if tensor.gradient]
        transfer, host = self.messages.transfer, self.messages.host
        self._takes(self.at.transfer[pair], moves, cp_model.LinearExpr.sum(whole), transfer)
        self._takes(self.at.there[pair], self.at.feeds[pair], cp_model.LinearExpr.sum(whole), host)
        self._takes(self.at.back[pair], self.at.returns[pair], cp_model.LinearExpr.sum(back), host)

    def _takes(self, time: cp_model.IntVar, used: cp_model.IntVar, size: Linear, times: Sequence[SizeTime]) -> None:
        """Let a message take what the range of its size says."""
        ranges = [self.model.new_bool_var(f"{time.name}_{number}") for number in range(len(times))]
        if ranges:
            self.model.add_exactly_one([*ranges, used.negated()])
        stops = [following.least_bytes for following in times[1:]]
        for number, (literal, each) in enumerate(zip(ranges, times, strict=True)):
            self.model.add(size >= each.least_bytes).only_enforce_if(literal)
            if number < len(stops):
                self.model.add(size < stops[number]).only_enforce_if(literal)
            unit = SLOPE * self.data.unit_ns
            whole = SLOPE * each.fixed_ns + each.slope * size - (unit - 1)  # rounded down to a unit
            self.model.add(unit * time >= whole).only_enforce_if(literal)
