"""The sweep's configurations and prices, on a small job of the model that it sweeps (`benchmarks.sweep`)."""

from collections import Counter

import pytest

from benchmarks.sweep.__main__ import best_rows
from benchmarks.sweep.choices import Group, Job, choices, groups
from benchmarks.sweep.pricing import Sweep, best_of, run, tally

GPT3 = Job(devices=64, global_batch=1536, heads=96, layers=96, largest_microbatch=32)


def everything(job):
    return [choice for group in groups(job) for choice in choices(job, group)]


def test_there_are_100392_configurations_on_64_devices_and_none_counts_twice():
    found = everything(GPT3)
    assert (len(found), len(set(found)), len(set(map(str, found)))) == (100_392, 100_392, 100_392)


def test_every_configuration_is_legal():
    for choice in everything(GPT3):
        config = choice.config
        assert config.tensor * config.context * config.data * choice.pipeline == 64
        assert 96 % config.tensor == 96 % choice.pipeline == 1536 % (config.data * choice.microbatch_size) == 0
        assert config.zero == 0 or config.data * config.context > 1
        assert config.offload != "parameters" or config.zero == 3
        assert config.tensor > 1 or not choice.sequence_parallel


def test_the_configurations_of_two_devices_are_these():
    """Layouts: data, context, pipeline (copies 2, 2, 1) and tensor with and without sequence parallelism (1)."""
    found = Counter(
        (c.config.tensor, c.config.context, c.pipeline, c.config.data, c.sequence_parallel)
        for c in everything(Job(2, 4, 2, 2, 1))
    )
    recomputes, overlaps, offloads = 3, 2, 3
    sharded, whole = 4 * offloads + 1, offloads
    assert found == {
        (1, 1, 1, 2, False): recomputes * overlaps * sharded,
        (1, 2, 1, 1, False): recomputes * overlaps * sharded,
        (1, 1, 2, 1, False): recomputes * overlaps * whole,
        (2, 1, 1, 1, False): recomputes * overlaps * whole,
        (2, 1, 1, 1, True): recomputes * overlaps * whole,
    }


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return Sweep.of(devices=64, batch=64, largest_microbatch=1)


def test_closed_form_and_simulation_agree_for_the_best(sweep):
    """Korthikanti et al. (2022) run this model and batch on 64 A100s with tensor 8 and pipeline 8."""
    found = tally(sweep, Group(tensor=8, sequence_parallel=True, microbatch_size=1, overlap=True))
    rows = best_rows(sweep, found.best[:3])
    assert found.num_fit_upper <= found.num_fit <= found.num_priced - found.num_refused
    for row in rows:
        assert abs(row["difference_percent"]) < 1
        assert 0 < row["mfu"] < 1
        assert row["memory_bytes"] <= row["memory_upper_bytes"] <= 80 * 2**30


def test_workers_find_what_one_process_finds(sweep):
    small = Sweep(sweep.profile, sweep.cluster, Job(64, 64, 1, 2, 1), sweep.cuts)
    alone = [tally(small, group) for group in groups(small.job)]
    total, _ = run(small, 2)
    assert total.num_priced == sum(row.num_priced for row in alone) > 0
    assert total.best == best_of([found for row in alone for found in row.best])
