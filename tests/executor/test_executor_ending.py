"""How a rank ends: no thread of a process group meets the interpreter's end, whatever happened before."""

import os
import subprocess
import sys

import pytest

from tests.support.repository import ROOT


@pytest.fixture(scope="module")
def codes():
    """Exit codes of two ranks for each way to end."""
    command = [sys.executable, "-m", "tests.support.ranks.ending_ranks"]
    found = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    return {way: list(map(int, rest)) for way, *rest in map(str.split, found.stdout.splitlines())}


def test_a_closed_pipeline_leaves_no_thread_of_its_groups(codes):
    assert codes["closed"] == [0, 0]


def test_a_closed_pipeline_keeps_no_thread_of_a_users_group(codes):
    assert codes["closed_in_a_world_of_the_users"] == [0, 0]


def test_a_rank_that_never_closes_ends_or_loses_the_other_but_no_signal_ends_it(codes):
    assert set(codes["never_closed"]) <= {0, 8}


@pytest.mark.parametrize("way", ["failed_with_a_sum_in_flight", "failed_and_caught"])
def test_a_rank_that_fails_with_a_sum_in_flight_ends_with_its_code_and_the_other_with_8(codes, way):
    assert codes[way] == [1, 8]
