"""A job with every choice fixed, as somebody ran it: a described model, machines, `plan`'s flags, what was measured.

Leaves out where jobs are read from (`planner.measured.runs`, `benchmarks.accuracy.tables`) and prediction.
"""

from dataclasses import dataclass, field, replace

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.configs import Config
from costmodel.architectures.describe import describe_config
from costmodel.architectures.estimate import estimated_profile
from costmodel.calibration import Calibration
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import Cluster
from costmodel.machines.typical import typical_cluster
from costmodel.model.profile import Profile
from costmodel.stages.strategies.memory import KINDS
from planner.question.problem import Problem
from planner.question.space import Space


@dataclass(frozen=True)
class MeasuredJob:
    """One measured job.

    Attributes
    ----------
    name : str
        Says which row it is.
    model : str
        Name of the shape; jobs of one name have one `config`.
    config : Config
    device : str
        Catalogue id.
    num_devices, batch, microbatch_size, sequence : int
    space : Space
    precision, optimizer, trainer : str
    step_ns : int
        Measured; 0 where it is not known.
    peak_bytes : int
        Of the fullest rank, measured; 0 where it is not known.
    memory_kind : str
        What the measured peak counts, of `costmodel.stages.strategies.memory.KINDS`.
    network_gbs : float
        Of one host; 0 for that of the catalogue's typical host.
    cluster : Cluster, optional
        In place of typical hosts.
    habits : tuple of (str, value)
        In which the trainer was told otherwise than it is used (`costmodel.stages.strategies.trainers`).
    group : str
        Jobs among which a choice is made: one model, batch and number of devices.
    ranked_with : str
        Jobs whose rates are compared although they do not choose between each other: one system and precision.
    forward_ns, backward_ns : int
        Measured of one micro-batch of an inner stage alone, in place of a step; else 0.
    order : str
        Name of the schedule; empty for the one that such jobs run in.
    layers : tuple of int
        Layers of each stage; empty for equally many.
    source : str
        Who measured it.
    lora_rank : int
        Of the adapters that alone trained; 0 for a model that trained whole.
    """

    name: str
    model: str
    config: Config = field(compare=False)
    device: str
    num_devices: int
    batch: int
    microbatch_size: int
    sequence: int
    space: Space
    precision: str
    trainer: str
    optimizer: str = "adam"
    step_ns: int = 0
    peak_bytes: int = 0
    memory_kind: str = KINDS[0]
    network_gbs: float = 0.0
    cluster: Cluster | None = None
    habits: tuple[tuple[str, object], ...] = ()
    group: str = ""
    ranked_with: str = ""
    forward_ns: int = 0
    backward_ns: int = 0
    order: str = ""
    layers: tuple[int, ...] = ()
    source: str = ""
    lora_rank: int = 0

    @property
    def schedule(self) -> str:
        """The order that the job ran in."""
        if self.order:
            return self.order
        return "interleaved-1f1b" if (self.space.chunks or 1) > 1 else "1f1b"

    @property
    def routes(self) -> bool:
        """Whether the model routes tokens to experts."""
        return any("expert" in name and value for name, value in self.config.values.items())

    def rate(self, step_ns: int) -> float:
        """Tokens a nanosecond and device at a step time."""
        return self.batch * self.sequence / (self.num_devices * step_ns)

    def machines(self, calibration: Calibration) -> Cluster:
        """Return the cluster, or typical hosts with the network that is known."""
        shares = calibration.shares(self.device)
        return self.cluster or typical_cluster(self.device, self.num_devices, self.network_gbs, shares)

    def profile(self, calibration: Calibration, others: tuple[int, ...] = ()) -> Profile:
        """Describe the model, at other sizes of a micro-batch than the job's as well if so asked."""
        sizes = tuple(sorted({self.microbatch_size, *others}))
        known = describe_config(
            self.model, self.config, tokens=self.sequence, precision=self.precision, microbatch_sizes=sizes,
            lora_rank=self.lora_rank,
        )  # fmt: skip
        on, dtype = catalogue_device(self.device), PRECISIONS[self.precision].dtype
        return estimated_profile(known.graph, on, self.precision, dtype, sizes, {}, {}, calibration)

    def problem(self, profile: Profile, calibration: Calibration) -> Problem:
        """Return the question that has this job as its one answer."""
        copies = (self.space.data or 1) * (self.space.context or 1)
        space = self.space if copies > 1 else replace(self.space, zero=0, shard_group=None)
        return Problem(
            profile,
            self.machines(calibration),
            self.num_devices,
            self.batch,
            microbatch_size=self.microbatch_size,
            schedule=self.schedule,
            optimizer=self.optimizer,
            space=space,
            target="any",
            trainer=self.trainer,
            habits=dict(self.habits),
            calibration=calibration,
        )
