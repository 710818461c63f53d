"""A job as every trainer's facts come to it: degrees, batch, schedule, and what each stage holds.

Leaves out keys and their values (`planner.export.job_configs.facts`) and prices (`planner.export.job_configs.today`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodel.errors import DoesNotMatch, InvalidInput, UsageError
from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from planner.export.given import operators_of
from planner.export.job_configs.facts import Facts
from planner.graph.layout import part_letters
from planner.plan.rank_order import RANK_ORDER, RankOrder
from simulator.schedules.kind import Orders

OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam"), "adam"),
    **dict.fromkeys(("lion", "fusedlion", "cpulion", "deepspeedcpulion"), "lion"),
    **dict.fromkeys(("muon", "dist_muon"), "muon"),
    "adafactor": "adafactor",
}
"""Trainers' names in small letters."""
Stages = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TodaysJob:
    """A job that somebody runs; `trainer` is the one whose habits it has, with those in `habits` told otherwise."""

    trainer: str
    config: StageConfig
    num_places: int
    microbatch_size: int
    global_batch: int
    schedule: str
    stages: Stages
    places: tuple[int, ...]
    precision: str = ""
    optimizer: str = "adam"
    habits: Mapping[str, object] = field(default_factory=dict)
    orders: Orders = ()
    rank_order: RankOrder = RANK_ORDER

    @property
    def num_devices(self) -> int:
        """How many devices it runs on."""
        return self.num_places * self.config.data * self.config.tensor * self.config.context


def world_size(facts: Facts, given: int) -> int:
    """Return how many devices there are, 0 where nothing says it; refuse two numbers."""
    nodes, each = facts.count("nodes", 1, 1), facts.count("node_size", 0)
    told = facts.count("world_size", nodes * each)
    if given and told and given != told:
        raise UsageError(f"--world-size {given}, and the job says {told} devices; give one of the two")
    return given or told


def replicas(world: int, inside: int) -> int:
    """Return how many replicas there are of what takes `inside` devices.

    Raises
    ------
    UsageError
        Where the number of devices is not known.
    InvalidInput
        Where it does not divide.
    """
    if not world:
        raise UsageError("the job's configuration does not say on how many devices it runs; give --world-size N")
    if world % inside:
        raise InvalidInput(f"{world} devices are no multiple of the {inside} that stages x tensor x context take")
    return world // inside


def layers_of(graph: OperatorGraph) -> Mapping[str, list[str]]:
    """Return the parts of a model by their letter.

    Raises
    ------
    DoesNotMatch
        For a model whose layers are not one list.
    """
    letters = part_letters(graph.parts)
    if not letters:
        raise DoesNotMatch(f"the layers of {graph.name} are not one list of modules, which a trainer's job divides")
    found: dict[str, list[str]] = {letter: [] for letter in "EtmL"}
    for part, letter in letters.items():
        found[letter].append(part)
    return found


def check_model(facts: Facts, graph: OperatorGraph, num_tokens: int) -> None:
    """Refuse a job of a model with other layers than the profile's; leave other sequences than its own.

    Raises
    ------
    DoesNotMatch
        Says what differs.
    """
    found = part_letters(graph.parts)
    for fact, letter, name in (("num_layers", "t", "layers"), ("mtp_layers", "m", "layers for multi-token prediction")):
        own = sum(each == letter for each in found.values())
        if facts.said(fact) and found and facts.count(fact) != own:
            raise DoesNotMatch(
                f"the job has {facts.count(fact)} {name}, and {graph.name} has {own}; give the profile of its model"
            )
    if facts.said("sequence") and num_tokens and facts.count("sequence") != num_tokens:
        facts.leave("sequence", f"the profile's samples are of {num_tokens} tokens, and all is priced so")


def stages_by_parts(rows: list[list[str]], graph: OperatorGraph) -> Stages:
    """Return the operators of stages that hold these parts of a model; operators of no part go with those before."""
    positions = operators_of(graph.parts)
    home = {part: stage for stage, row in enumerate(rows) for part in row}
    stages: list[list[int]] = [[] for _ in rows]
    stage = 0
    for position, part in enumerate(graph.parts):
        stage = home.get(part, stage)
        stages[stage].append(position)
    lost = next((part for part in positions if part and part not in home), None)
    if lost is not None:
        raise InvalidInput(f"{lost} of {graph.name} is in no stage")
    return tuple(map(tuple, stages))


def check_experts(facts: Facts, graph: OperatorGraph) -> None:
    """Refuse experts that the model does not have.

    Raises
    ------
    DoesNotMatch
        When the job spreads them over ranks.
    """
    works = [operator.work for operator in graph.operators]
    if facts.count("expert", 1, 1) > 1 and not any(work and work.experts for work in works):
        raise DoesNotMatch(
            f"the job spreads experts over {facts.count('expert')} ranks, and {graph.name} has none; give the profile "
            "of its model"
        )


NARROW = (("fp4", "nvfp4"), ("fp8", "fp8"))
"""Facts that tell a precision of fewer than 16 bits."""


def precision_of(facts: Facts, unsaid: str = "") -> str:
    """Return the precision that flags of its kinds tell; `unsaid` where none does and none is left open."""
    if facts.flag("bf16") and facts.flag("fp16"):
        facts.fail("fp16", f"{facts.values['bf16'].key} is on as well, and the trainer takes one of the two")
    none = ("false", "0", "none", "null")
    narrow = [name for fact, name in NARROW if facts.said(fact) and str(facts.value(fact)).lower() not in none]
    found = narrow[0] if narrow else "bf16" if facts.flag("bf16") else "fp16" if facts.flag("fp16") else ""
    return found or ("" if {"bf16", "fp16"} & facts.silent else unsaid)


def optimizer_of(facts: Facts, name: str) -> str:
    """Return the optimizer of a trainer's name, other than SGD; what nobody prices is priced as Adam, and named."""
    found = OPTIMIZERS.get(name.lower())
    if not found:
        facts.leave("optimizer", "it is priced as Adam")
    return found or "adam"
