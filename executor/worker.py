"""One rank of a running plan: its stages, its program, and the step that runs it.

Made without any communication, so that what does not fit together is found before a rank waits for
another; `connect` then makes groups in one fixed order on every rank. Leaves out the user's side
(`pipeline`) and what is compared or written afterwards (`check`, `measure`).
"""

import time
from functools import partial

import torch

from costmodel.capture.batches import TARGETS
from costmodel.capture.capture import Capture
from costmodel.capture.parts import Part, extract
from costmodel.capture.shapes import fetch
from costmodel.capture.split import Queue, split_part
from executor.feed import Feed
from executor.holding import held_tensors, keep_only
from executor.losses import StepLoss, own_loss, summed_loss
from executor.optimizer import MakeOptimizer, StageOptimizer, connect_shards, stage_optimizers
from executor.planned import planned_times
from executor.program import Instruction, Program
from executor.recording import RawSpan, Recorder
from executor.reduction import Reduction
from executor.stage import Stage
from executor.transport import Transport
from executor.watch import Watch
from executor.wiring import Wiring, wire_plan
from planner.plan import Plan
from simulator.actions import SENDS, Action, Kind, parse_action


class Worker:
    """A rank's part of a plan.

    Parameters
    ----------
    plan : Plan
    capture : Capture
        Of the very model whose parameters are trained; already found to be the plan's.
    rank : int
    device : torch.device
    optimizer : callable, optional
        Parameters -> optimizer, for the plan's OPT.
    emulate : bool
        Hold each action for its planned time.
    keeps_model : bool
        Whether parameters that this rank does not need stay as they are; else they are emptied.
    """

    def __init__(
        self,
        plan: Plan,
        capture: Capture,
        rank: int,
        device: torch.device,
        optimizer: MakeOptimizer | None = None,
        emulate: bool = False,
        keeps_model: bool = True,
    ) -> None:
        self.plan, self.capture, self.rank, self.device = plan, capture, rank, device
        self.order = tuple(parse_action(text) for text in plan.orders[rank])
        self.wiring: Wiring = wire_plan(plan, capture)
        self.feed = Feed(capture, plan.batch.global_size, plan.batch.num_microbatches, device)
        self.stages = {s: self._stage(s) for s in self.wiring.graph.stages_of(rank)}
        self.held, self.unread = held_tensors(plan, capture, rank)
        if not keeps_model:
            keep_only(capture, self.held, self.unread, device)
        self.owned = [self._trainable(stage) for stage in range(len(plan.stages))]
        self.parameters = {name: capture.parameter(name) for s in self.stages for name in self.owned[s]}
        self._recorder = Recorder.on(device)
        self._emulate = emulate
        self._posting_ns, links = 0, plan.cluster.links
        self._host_time_planned = links is not None and "p2p_host" in links.classes
        self._optimizers: dict[int, StageOptimizer] = {}
        if optimizer is not None and any(action.kind is Kind.OPT for action in self.order):
            self._optimizers = stage_optimizers(plan, optimizer, rank, self.owned, self.parameters)
        self._weighted: bool | None = None  # learnt in the first step: only the last stage's loss says it
        self._closed = False

    def connect(self, watch: Watch) -> None:
        """Make the groups and bind the order to them; collective over all ranks."""
        ranks = [stage.ranks for stage in self.plan.stages]
        self.watch = watch
        alone = len(self.plan.orders) == 1
        self.transport = None if alone else Transport(self.rank, self.device, self._pairs(), watch)
        self.reduction = Reduction(self.owned, ranks, self.parameters, self.device, watch)
        connect_shards(self.plan, self._optimizers)
        self.program = Program(
            self.rank,
            self.wiring,
            self.stages,
            self.transport,
            self.reduction.stage_is_done,
            self._optimize,
            self.plan.batch.num_microbatches,
        )
        self._instructions = self.program.bind(self.order, planned_times(self.plan, self.order))

    def disconnect(self) -> None:
        """Give up everything that refers to the groups; there are no more steps."""
        if self.transport is not None:
            self.transport.close()
        self.reduction.close()
        for optimizer in self._optimizers.values():
            optimizer.group = None

    def step(self) -> StepLoss:
        """Run the loaded batch through the plan; gradients are this step's alone, in ``.grad``."""
        self._begin()
        for instruction in self._instructions:
            self._do(instruction)
        if not self._closed:
            self._close()
        if self.transport is not None:
            self.transport.settle()
        self.watch.rests()
        self.watch.last_complete_step += 1
        return self.loss

    def _begin(self) -> None:
        self.watch.works()
        for parameter in self.parameters.values():
            parameter.grad = None
        for stage in self.stages.values():
            stage.losses.clear()
        self._recorder.clear()
        self.program.mailbox.waits.clear()
        self.reduction.begin()
        self._closed = False

    def _do(self, instruction: Instruction) -> None:
        action = self.watch.at = instruction.action
        received = instruction.collect() if instruction.collect is not None else None
        mark, start = self._recorder.mark(instruction.stream), time.perf_counter_ns()
        instruction.execute(received)
        if self._emulate:
            self._hold(instruction, start)
        self._recorder.note(action, instruction.stream, mark)

    def _hold(self, instruction: Instruction, start: int) -> None:
        """Hold an action for its planned time, less what messages since the last one took if the plan counts that."""
        spent = time.perf_counter_ns() - start
        if instruction.stream in ("send", "receive"):
            self._posting_ns += spent if self._host_time_planned else 0
            return
        left = instruction.planned_ns - spent - self._posting_ns
        self._posting_ns = 0
        if left > 0:
            time.sleep(left / 1e9)

    def _optimize(self, stage: int) -> None:
        if not self._closed:
            self._close()
        if stage in self._optimizers:
            self._optimizers[stage].step()

    def _close(self) -> None:
        """Complete the gradients: sums over ranks, and the division by a total weight."""
        self._closed = True
        self.reduction.finish()
        self.loss = own_loss(self.stages.values())
        if self._weighted is not False and len(self.plan.orders) > 1:
            start = time.perf_counter_ns()
            self.loss = self.total_loss()
            self.reduction.waits.append((Action(Kind.REDUCE, max(self.stages)), start, time.perf_counter_ns()))
        self._weighted = self.loss.weighted
        if self._weighted:
            gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
            if gradients:
                torch._foreach_div_(gradients, self.loss.weight)

    def measured(self) -> list[RawSpan]:
        """Return the last step's spans: actions, waits for messages and for sums of gradients.

        A receive has two: the call that posts it, and the later wait.
        """
        waits = [(action, "receive", start, end) for action, start, end in self.program.mailbox.waits]
        sums = [(action, "collective", start, end) for action, start, end in self.reduction.waits]
        return [*self._recorder.spans(), *waits, *sums]

    def excess_ns(self) -> int:
        """Return how much longer than planned the last step's actions, with their messages, took on this rank."""
        planned = sum(i.planned_ns for i in self._instructions if i.stream == "compute")
        return sum(end - start for _, stream, start, end in self._recorder.spans() if stream != "collective") - planned

    def total_loss(self) -> StepLoss:
        """Return the last step's loss over all ranks; collective."""
        own = own_loss(self.stages.values())
        return summed_loss(own) if len(self.plan.orders) > 1 else own

    def _stage(self, index: int) -> Stage:
        planned = self.plan.stages[index]
        kinds = {action.kind for action in self.order if action.stage == index}
        queue = Queue() if Kind.I in kinds else None
        part = self._part(index) if queue is None else split_part(self._part(index), queue)
        read = partial(self.feed.read, part.raw_inputs, part.has_loss, planned.microbatch_multiple)
        return Stage(
            index,
            part,
            self.wiring.incoming(index),
            self.wiring.outgoing(index),
            planned.microbatch_multiple,
            self.plan.batch.num_microbatches,
            self.wiring.graph.backward[index],
            read,
            recomputes=self.wiring.graph.backward[index] and (Kind.R in kinds or planned.config.recompute == "full"),
            queue=queue,
            buffers=self._buffers(part),
            device=self.device,
        )

    def _buffers(self, part: Part) -> tuple[torch.Tensor, ...]:
        """Return the model's buffers that a part reads."""
        known = {id(buffer) for buffer in self.capture.model.module.buffers()}
        read = [fetch(part.module, node.target) for node in part.module.graph.nodes if node.op == "get_attr"]
        return tuple(tensor for tensor in read if id(tensor) in known)

    def _part(self, index: int) -> Part:
        """Cut a stage out of the model; what it passes on without computing it is no output of the part."""
        operators = self.plan.stages[index].operators
        named = dict.fromkeys(name for wire in self.wiring.outgoing(index) for name in wire.names)
        relayed = {name for wire in self.wiring.incoming(index) for name in wire.names}
        return extract(self.capture, operators, [name for name in named if name not in relayed])

    def _trainable(self, stage: int) -> tuple[str, ...]:
        """Return the trainable parameters that a stage reads, by name."""
        groups = self.capture.groups
        read = {name: None for o in self.plan.stages[stage].operators if o in groups for name in groups[o].parameters}
        return tuple(name for name in read if self.capture.parameter(name).requires_grad)

    def inputs_needed(self) -> dict[str | int, tuple[tuple[int, int], ...]]:
        """Return input name or position (and ``targets``) -> ranges of samples that this rank reads."""
        size = self.plan.batch.microbatch_size
        of_input = dict(zip(self.capture.inputs, self.feed.keys(), strict=True))
        needed: dict[str | int, set[int]] = {}
        for index, stage in self.stages.items():
            firsts = self.wiring.graph.microbatches_of(index, self.rank, stage.num_microbatches)
            samples = {k * size + i for k in firsts for i in range(stage.multiple * size)}
            keys: list[str | int] = [of_input[name] for name in stage.part.raw_inputs]
            keys += [TARGETS] if stage.part.has_loss and self.capture.model.has_targets else []
            for key in keys:
                needed[key] = needed.get(key, set()) | samples
        return {key: _ranges(samples) for key, samples in needed.items()}

    def lowest_owners(self) -> dict[str, int]:
        """Return the lowest rank that has each trainable parameter, in the order of stages."""
        lowest: dict[str, int] = {}
        for stage, names in enumerate(self.owned):
            for name in names:
                rank = min(self.plan.stages[stage].ranks)
                lowest[name] = min(rank, lowest.get(name, rank))
        return lowest

    def _pairs(self) -> set[tuple[int, int]]:
        """Return all (sender, receiver) ranks of the plan."""
        graph = self.wiring.graph
        sends = (parse_action(text) for order in self.plan.orders for text in order if "SEND" in text)
        return {
            (graph.rank_of(action.stage, action.microbatch), graph.rank_of(action.peer, action.microbatch))
            for action in sends
            if action.kind in SENDS
        }


def _ranges(samples: set[int]) -> tuple[tuple[int, int], ...]:
    """Return a set of numbers as ranges [first, stop)."""
    starts = sorted(i for i in samples if i - 1 not in samples)
    stops = sorted(i + 1 for i in samples if i + 1 not in samples)
    return tuple(zip(starts, stops, strict=True))
