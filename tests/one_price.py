"""One price: a candidate priced, simulated and written is the same plan by whatever entry it comes.

Candidates are random partitions of made-up models (tied weights, shared storages, frozen parts, host time; small
described ones where degrees divide operators) on clusters with mixed devices and hosts.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from random import Random

from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.cluster import Cluster, DeviceType, Host, LinkGroup
from costmodel.model.profile import Device, Profile
from costmodel.model.whole import SplitRatios, Whole
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import StageCost
from planner.ask.effort import Effort
from planner.ask.pins import Group, Pins, StagePin
from planner.ask.problem import Problem
from planner.ask.space import Space
from planner.candidate.candidate import Candidate, Place, in_loop
from planner.candidate.evaluate import Evaluator
from planner.graph.atoms import Atoms, Partition, numbered, prepare
from planner.plan import Plan
from planner.plan.replay import replay
from planner.search.planners import plan
from tests.described_models import described
from tests.random_profiles import random_profile, with_shared_storages

QUICK = Effort(60.0, 0.0)
"""A search without the solver."""


def random_model(rng: Random) -> Profile:
    """A made-up or a small described model."""
    if rng.random() < 0.3:
        return described(rng.choice(("gpt2", "llama")))
    size = rng.randint(3, 9)
    split = rng.choice(((), (SplitRatios(1.1, 1.2),) * 3))
    whole = Whole((1, 2, 4), 0, rng.choice((0, 700)), rng.choice((0, 5000)), split)
    profile = random_profile(
        rng, size, whole=whole, tied=[(0, size - 1)] if rng.random() < 0.5 else [], host_ns=rng.choice((0, 200)),
        frozen=frozenset({0}) if rng.random() < 0.2 else frozenset(),
    )  # fmt: skip
    return with_shared_storages(rng, profile)


def random_problem(rng: Random) -> Problem:
    """A free problem on two to four devices: as profiled, or on hosts of two types with a network between."""
    profile = random_model(rng)
    num_devices = rng.choice((2, 3, 4))
    batch, optimizer = rng.choice((4, 8, 12)), rng.choice(("none", "sgd", "adam"))
    mixed = rng.random() < 0.4
    others = (slower(profile),) if mixed and not profile.device.catalogue else ()
    return Problem(
        profile, hosts(profile, num_devices) if mixed else None, num_devices, batch, optimizer=optimizer, target="any",
        other_profiles=others, trainer=rng.choice(("", "executor", "megatron")), effort=QUICK,
    )  # fmt: skip


def slower(profile: Profile) -> Profile:
    """The same model on a device of half the speed."""
    times = tuple(
        replace(each, **{part: tuple(2 * ns for ns in getattr(each, part))
                         for part in ("forward_ns", "backward_input_ns", "backward_weight_ns")})
        for each in profile.times
    )  # fmt: skip
    return replace(profile, device=Device("cpu", "slow", 2**40), times=times)


def hosts(profile: Profile, num_devices: int) -> Cluster:
    """One host of the profiled device, and one of another with the devices that are left."""
    known = profile.device
    first = DeviceType(known.name, known.memory_bytes, known.type, known.catalogue)
    second = DeviceType("A100", 80 * 2**30, "cuda", "a100-sxm-80") if known.catalogue else DeviceType("slow", 2**40, "cpu")
    links = (LinkGroup("host", num_devices - 1, 100.0, 500), LinkGroup("network", 0, 10.0, 5000))
    return Cluster((first, second), (Host(first.name, num_devices - 1), Host(second.name, 1)), links)
