"""What somebody runs today as a plan: a trainer's configuration read, its stages priced and simulated.

Leaves out any search; ``plan --from`` compares such a plan with ours.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from costmodel.errors import UsageError
from costmodel.model.profile import Profile
from planner.export.given import Given, given_plan
from planner.export.job_configs.deepspeed_job import deepspeed_job
from planner.export.job_configs.entries import Entry, read_entries
from planner.export.job_configs.facts import Facts, facts_of
from planner.export.job_configs.interpreted import TodaysJob, check_experts, check_model
from planner.export.job_configs.key_table import TRAINERS, key_table
from planner.export.job_configs.megatron_job import megatron_job
from planner.export.job_configs.torchtitan_job import torchtitan_job
from planner.plan import Plan
from planner.question.problem import Problem
from planner.question.same_model import sample_of


def todays_plan(path: str | Path, trainer: str, profile: Profile, given_world: int = 0) -> tuple[Plan, Facts]:
    """Return the plan of a job, with its trainer and what it ignores in `extra.job`, and what the job said.

    Parameters
    ----------
    path : str or Path
    trainer : str
        One of `TRAINERS`.
    profile : Profile
        Of the job's model.
    given_world : int
        Devices, where the configuration does not say them; else 0.

    Raises
    ------
    InvalidInput
        For a file that is no such configuration, unknown keys, or values that cannot be; names the place.
    UsageError
        When the number of devices is not said, or twice.
    DoesNotMatch
        When the job is of another model.
    """
    job, facts = todays_job(read_entries(path, trainer), trainer, profile, given_world, Path(path).parent)
    source = f"the job {Path(path).name} of {trainer}"
    given = Given(source, job.stages, job.places, job.config, job.schedule, job.orders, job.rank_order)
    plan = given_plan(_problem(profile, job), given, must_fit=False)
    told = {"trainer": trainer, "precision": job.precision, "optimizer": job.optimizer, "habits": dict(job.habits)}
    ignored = [{"key": key, "why": why} for key, why in facts.ignored]
    return replace(plan, extra={**plan.extra, "job": {**told, "ignored": ignored}}), facts


def todays_job(
    entries: Sequence[Entry], trainer: str, profile: Profile, given_world: int, folder: Path
) -> tuple[TodaysJob, Facts]:
    """Return the job that the entries of a configuration come to, and what they said; see `todays_plan`."""
    shared = key_table("megatron") if trainer == "megatron-bridge" else None
    facts = facts_of(entries, key_table(trainer), shared)
    check_model(facts, profile.graph, _tokens(profile))
    check_experts(facts, profile.graph)
    job = _job(trainer, facts, profile, given_world, folder)
    facts.leave_the_rest()
    return job, facts


def _tokens(profile: Profile) -> int:
    found = sample_of(profile.graph).get("tokens", 0)
    return found if isinstance(found, int) else 0


def _job(trainer: str, facts: Facts, profile: Profile, given_world: int, folder: Path) -> TodaysJob:
    if trainer == "deepspeed":
        return deepspeed_job(facts, profile.graph, given_world)
    if trainer == "torchtitan":
        return torchtitan_job(facts, profile.graph, given_world, folder)
    if trainer not in TRAINERS:
        raise UsageError(f"no job of {trainer!r} is read; there are {', '.join(TRAINERS)}")
    return megatron_job(facts, profile.graph, given_world, by_recipe=trainer != "megatron")


HOST_BYTES = 2**41
"""Taken for a host's memory where a job offloads to it: it runs today, so there is room."""


def _problem(profile: Profile, job: TodaysJob) -> Problem:
    problem = Problem(
        profile,
        None,
        job.num_devices,
        job.global_batch,
        microbatch_size=job.microbatch_size,
        optimizer=job.optimizer,
        precision=job.precision,
        trainer=job.trainer,
        habits=job.habits,
    )
    if job.config.offload == "none":
        return problem
    hosts = tuple(replace(host, memory_bytes=HOST_BYTES) for host in problem.machines.hosts)
    return replace(problem, cluster=replace(problem.machines, hosts=hosts))
