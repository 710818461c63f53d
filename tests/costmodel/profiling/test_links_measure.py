"""Links are measured between real local processes, and the fit follows the table."""

import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.links import LinkClass, Links, SizeRange, read_links, write_links
from costmodel.profiling.links import SIZES_BYTES, fit_ranges, measure_links
from costmodel.profiling.links_host import HOST_SIZES_BYTES
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob
from tests.support.gpt_graph import cluster, gpt
from tests.support.schema_corpus import validator

LAYERS = range(1, 21)


def test_two_local_ranks_are_measured_at_every_size():
    links = measure_links(2, "cpu", ("p2p",))
    table = links.classes["p2p"].table
    assert [size for size, _ in table] == list(SIZES_BYTES["cpu"])
    assert all(ns > 0 for _, ns in table)
    assert (links.backend, links.num_ranks) == ("gloo", 2)


@pytest.mark.parametrize("children", [2, 3])  # the keeper of shared resources, and one rank or two
@pytest.mark.skipif(sys.platform != "linux", reason="when a rank starts is told by /proc, which only Linux has")
def test_sigterm_while_ranks_are_started_ends_them_without_words(children, tmp_path):
    command = [sys.executable, "-m", "planner", "links", "-o", str(tmp_path / "links.json"), "--ranks", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        started = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(started.read_text().split()) < children:
            time.sleep(0.0002)
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[1] == "penstock: interrupted\n"
    assert process.returncode == 130


def test_the_time_that_a_message_takes_from_a_computing_rank_is_measured_by_size():
    table = measure_links(2, "cpu", ("p2p_host",)).classes["p2p_host"].table
    assert [size for size, _ in table] == list(HOST_SIZES_BYTES)
    assert all(ns > 0 for _, ns in table)


def test_the_slowdown_of_compute_beside_a_sum_is_measured_kept_and_planned_with(tmp_path):
    links = measure_links(2, "cpu", ("all_reduce",), overlap=True)
    assert 1 <= links.overlap_slowdown < 50
    write_links(tmp_path / "links.json", links)
    assert read_links(tmp_path / "links.json") == links
    assert validator("links").is_valid(json.loads((tmp_path / "links.json").read_text()))
    with pytest.raises(InvalidInput, match="at least 1"):
        replace(links, overlap_slowdown=0.5)


def test_a_plan_takes_the_measured_slowdown_in_place_of_the_catalogues():
    def forward_ns(factor):
        machines = replace(cluster(8), links=Links("nccl", "any", 8, {}, factor))
        config = StageConfig(data=8, zero=3)
        return StrategyModel(gpt(2, 64, 32, 4), machines, 1, TrainingJob()).stage(LAYERS, config, range(8)).forward_ns

    assert forward_ns(1.0) < forward_ns(0.0) < forward_ns(3.0)


def test_links_without_host_time_price_none_and_an_empty_message_is_a_byte():
    host = LinkClass((SizeRange(0, 300_000, 1.0),))
    assert Links("gloo", "cpu", 2, {}).host_ns(4096) == 0
    assert Links("gloo", "cpu", 2, {"p2p_host": host}).host_ns(4096) == 304_096
    assert Links("gloo", "cpu", 2, {"p2p_host": host}).host_ns(0) == 300_001


def test_a_links_file_keeps_host_time(tmp_path):
    links = Links("gloo", "cpu", 2, {"p2p_host": LinkClass((SizeRange(0, 300_000, 1.0),), ((4096, 304_096),))})
    write_links(tmp_path / "links.json", links)
    assert read_links(tmp_path / "links.json") == links


def test_a_fit_of_latency_and_bandwidth_gives_them_back():
    table = tuple((size, 20_000 + size // 4) for size in SIZES_BYTES["cpu"])
    ranges = fit_ranges(table)
    assert {r.latency_ns for r in ranges} == {20_000}
    assert {round(r.bandwidth_gbs, 6) for r in ranges} == {4.0}


def test_a_fit_passes_through_the_table_where_the_cost_of_a_byte_falls():
    table = ((1024, 30_000), (65536, 50_000), (1048576, 300_000), (16777216, 4_000_000))
    fit = LinkClass(fit_ranges(table), table)
    assert [fit.time_ns(size) for size, _ in table] == pytest.approx([ns for _, ns in table], abs=2)


@pytest.mark.parametrize(
    "table",
    [
        ((1024, 30_000), (4096, 20_000), (65536, 90_000), (1048576, 80_000)),
        ((1024, 1_000), (1048576, 200_000), (16777216, 9_000_000)),
        ((1024, 5_000), (4096, 5_000), (65536, 5_000)),
        ((4096, 7_000),),
    ],
    ids=["out of order", "caches are left", "flat", "one size"],
)
def test_fitted_times_rise_with_size_and_are_never_below_zero(table):
    fit = LinkClass(fit_ranges(table), table)
    times = [fit.time_ns(size) for size in range(1, 2**21, 4097)]
    assert min(times) >= 0
    assert all(a <= b + 1 for a, b in itertools.pairwise(times))


def test_one_rank_has_no_link():
    with pytest.raises(UsageError, match="needs two ranks"):
        measure_links(1)
