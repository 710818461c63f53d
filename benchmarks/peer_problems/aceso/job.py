"""Configurations that Aceso's archive measured, predicted as every plan is priced and simulated.

A configuration gives each stage its operators, its degrees and the operators whose forward runs again; on the archive's
profile and cluster it is a candidate like any other. Its trainer sums nothing beside the backward, waits for each
message and steps on gradients in fp32. Leaves out how predictions are judged (`benchmarks.accuracy`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from benchmarks.peer_problems.aceso.archive import AcesoArchive, AcesoConfiguration, read_archive
from benchmarks.peer_problems.aceso.cluster import aceso_cluster
from benchmarks.peer_problems.aceso.devices import aceso_device
from benchmarks.peer_problems.aceso.layer import aceso_names
from benchmarks.peer_problems.aceso.profile import aceso_profile
from costmodel.errors import InvalidInput, PenstockError
from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from costmodel.stages.config import BY_OPERATOR, StageConfig
from costmodel.stages.costs import Costs, StageCost, largest
from costmodel.stages.strategies import TrainingJob
from costmodel.stages.strategies.memory import KINDS
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluator
from planner.candidate.upper_memory import upper_bytes
from planner.graph.atoms import prepare
from planner.measured.predicted import Predicted
from planner.question.problem import Problem
from simulator.engine import simulate


class AcesoProblem(Problem):
    """A problem under the habits of Aceso's trainer, a Megatron-LM of 2022."""

    @cached_property
    def training(self) -> TrainingJob:
        """Nothing is summed beside the backward."""
        return TrainingJob("fp16", "adam", overlap=False)


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """Of one stage: all its forwards and backwards of a step (recompute and sums inside them), a rank's peak.

    `upper_bytes` is the upper bound of that peak, as plans have it.
    """

    forward_ns: int
    backward_ns: int
    peak_bytes: int
    upper_bytes: int


@dataclass(frozen=True, slots=True)
class AcesoPrediction:
    """What a configuration is predicted to take: the step, and each stage."""

    step_ns: int
    stages: tuple[StagePrediction, ...]


@dataclass(frozen=True, slots=True)
class AcesoJob:
    """A configuration that ran: its step, or what one stage's forward, backward and rank took (0: not measured).

    Forwards and backwards are those of all micro-batches of a step; `group` is of one model, batch and number of
    devices.
    """

    archive: Path
    device: str
    model: str
    config: str
    stage: int = -1
    step_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    peak_bytes: int = 0
    group: str = ""
    ranked_with: str = ""

    def rate(self, step_ns: int) -> float:
        """Return steps a nanosecond, which is a rate among those of one group."""
        return 1 / step_ns


class AcesoPredictor:
    """Predicts such jobs; what an archive has of a model is read once."""

    def __init__(self) -> None:
        self._known: dict[AcesoJob, AcesoPrediction] = {}
        self._models: dict[tuple[Path, str, str], AcesoModel] = {}

    def of(self, job: AcesoJob) -> Predicted:
        """Predict one job; one that cannot be says why."""
        try:
            found = self._found(AcesoJob(job.archive, job.device, job.model, job.config))
        except PenstockError as error:
            return Predicted(job, why_not=str(error))
        if job.stage < 0:
            return Predicted(job, found.step_ns)
        if job.stage >= len(found.stages):
            return Predicted(job, why_not=f"stage {job.stage}; {job.config} has {len(found.stages)}")
        stage = found.stages[job.stage]
        return Predicted(job, 0, stage.peak_bytes, stage.upper_bytes, stage.forward_ns, stage.backward_ns)

    def _found(self, job: AcesoJob) -> AcesoPrediction:
        if job not in self._known:
            key = job.archive, job.device, job.model
            if key not in self._models:
                self._models[key] = AcesoModel(read_archive(*key))
            self._known[job] = self._models[key].predicted(job.config)
        return self._known[job]


class AcesoModel:
    """Predicts the configurations of one archive's model on its device."""

    def __init__(self, archive: AcesoArchive) -> None:
        self.archive = archive
        self.profile: Profile = aceso_profile(archive)
        self.cluster: Cluster = aceso_cluster(archive)

    def predicted(self, name: str) -> AcesoPrediction:
        """Return what a configuration takes, by its name in the archive.

        Raises
        ------
        PenstockError
            For a name or a configuration that cannot be priced.
        """
        if name not in self.archive.configurations:
            raise InvalidInput(f"no configuration {name!r}; there are {', '.join(self.archive.configurations)}")
        found = self.archive.configurations[name]
        evaluator, candidate = self.candidate(found)
        run = evaluator.simulate(candidate)
        seats, both_ways = self.cluster.seats, aceso_device(self.archive.device).both_ways
        hosts = [{seats[rank] for rank in place.ranks} for place in candidate.places]
        costs = _exchanging(run.priced.costs, hosts, both_ways)
        schedule, speeds = run.times.structure.schedule, evaluator.speeds_of(run.priced.blocks)
        timeline = simulate(schedule, costs, p2p="blocking", speeds=speeds)
        peaks, margins = timeline.peak_memory_bytes, upper_bytes(evaluator, candidate, run, KINDS[0])
        margins = [upper - peak for upper, peak in zip(margins, run.times.peak_memory_bytes, strict=True)]
        stages = []
        for cost, ranks, place in zip(costs.stages, costs.ranks, candidate.places, strict=True):
            count = evaluator.num_microbatches // place.config.data
            backward = (cost.backward_input_ns, cost.backward_weight_ns, cost.recompute_ns)
            peak = max(*(peaks[rank] for rank in ranks), _stepping_bytes(cost))
            upper = peak + margins[ranks[0]]
            stages.append(
                StagePrediction(largest(cost.forward_ns) * count, sum(map(largest, backward)) * count, peak, upper)
            )
        return AcesoPrediction(timeline.step_time_ns, tuple(stages))

    def candidate(self, found: AcesoConfiguration) -> tuple[Evaluator, Candidate]:
        """Return a configuration as a candidate, with what prices it."""
        problem = AcesoProblem(
            self.profile,
            self.cluster,
            sum(found.devices),
            found.batch,
            found.microbatch_size,
            schedule="1f1b",
            precision="fp16",
            target="any",
            trainer="megatron",
        )
        atoms = prepare(self.profile.graph)
        stage_of = [stage for stage, count in enumerate(found.operators) for _ in range(count)]
        stage_of.append(stage_of[-1])  # the loss stands with the head
        partition = tuple(stage_of[members[0]] for members in atoms.members)
        candidate = Candidate(partition, places(found), found.microbatch_size, "1f1b", line=True)
        return Evaluator(problem, atoms, found.microbatch_size), candidate


def _exchanging(costs: Costs, hosts: Sequence[set[int]], both_ways: bool) -> Costs:
    """Return costs as Aceso's trainer has them: stages keep what they send until its gradient is back.

    What travels both ways between two stages travels at once, so that a rank stands still for two exchanges of a
    micro-batch where `blocking` counts four messages: each counts half, but between hosts whose network has one way.
    """
    sent = [sum(edge.size_bytes for edge in costs.edges if edge.source == i) for i in range(len(costs.stages))]
    return replace(
        costs,
        stages=tuple(
            replace(stage, activation_bytes=largest(stage.activation_bytes) + more)
            for stage, more in zip(costs.stages, sent, strict=True)
        ),
        edges=tuple(
            replace(edge, p2p_ns=edge.p2p_ns // 2) if both_ways or hosts[edge.source] == hosts[edge.target] else edge
            for edge in costs.edges
        ),
    )


def _stepping_bytes(stage: StageCost) -> int:
    """Return what a stage holds while the optimizer steps: gradients in fp32 in place of the 16-bit ones."""
    terms = dict(stage.memory_terms)
    return sum(terms.get(name, 0) for name in ("parameters", "optimizer", "master_weights")) + 2 * terms["gradients"]


def places(found: AcesoConfiguration) -> tuple[StagePlacement, ...]:
    """Return where and how each stage runs: its ranks follow those of the stage before.

    Raises
    ------
    InvalidInput
        For a stage whose operators have several degrees.
    """
    rows, first, rank = [], 0, 0
    names = aceso_names(found.layers)
    for stage, (count, devices) in enumerate(zip(found.operators, found.devices, strict=True)):
        degrees = {*zip(found.tensor[stage], found.data[stage], strict=True)}
        if len(degrees) > 1:
            raise InvalidInput(f"{found.name}: the operators of stage {stage} have the degrees {sorted(degrees)}")
        (tensor, data), again = degrees.pop(), found.again[stage]
        remade = tuple(n for n, flag in zip(names[first : first + count], again, strict=True) if flag)
        config = StageConfig(data, tensor, recompute=BY_OPERATOR if remade else "none", recomputed_operators=remade)
        rows.append(StagePlacement(config, tuple(range(rank, rank + devices))))
        first, rank = first + count, rank + devices
    return tuple(rows)
