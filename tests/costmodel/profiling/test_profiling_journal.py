"""Measured items survive a kill: the same keys, none measured twice, nothing of another run."""

import json
import os

import pytest

from costmodel.errors import InvalidInput, UsageError
from costmodel.profiling.journal import Journal, begin_journal

HEADING = {"model": "m", "repeats": 3}


def fill(path, resume, limit=10):
    measured = []

    def measure(key):
        if len(measured) == limit:
            raise KeyboardInterrupt
        measured.append(key)
        return [key, 1.5]

    journal = Journal(path, HEADING, resume)
    try:
        for key in "abcde":
            journal.item(key, lambda key=key: measure(key))
    except KeyboardInterrupt:
        pass
    return measured


def keys(path):
    return [json.loads(line)[2][0] for line in path.read_text().splitlines()[1:]]


@pytest.mark.parametrize("limit", range(6))
def test_an_interrupted_and_resumed_journal_has_the_same_keys_without_duplicates(tmp_path, limit):
    path = tmp_path / "j"
    first = fill(path, False, limit)
    second = fill(path, True)
    assert first + second == list("abcde")
    assert keys(path) == list("abcde")


def test_a_line_cut_off_by_a_kill_is_measured_again(tmp_path):
    path = tmp_path / "j"
    fill(path, False)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        fill(path, True)
        assert keys(path) == list("abcde")


def test_without_insisting_a_journal_is_resumed_when_it_agrees_and_begun_anew_when_not(tmp_path):
    path = tmp_path / "j"
    fill(path, False, limit=2)
    assert fill(path, False) == list("cde")
    assert Journal(path, {**HEADING, "repeats": 5}, False).items == {}
    assert fill(path, False) == list("abcde")


def test_a_journal_of_other_options_is_refused_and_says_which(tmp_path):
    fill(tmp_path / "j", False)
    with pytest.raises(UsageError, match="begun with repeats 3, now it is 5"):
        Journal(tmp_path / "j", {"model": "m", "repeats": 5}, True)


def test_without_a_file_items_are_measured_once():
    journal = Journal(None, HEADING, False)
    assert [journal.item("a", lambda: 1), journal.item("a", lambda: 2)] == [1, 1]


@pytest.mark.parametrize(
    "broken",
    [b"\x00\xff\n", b"garbage\n", b'{"no": "item"}\n', b"[1, 2]\n", b"[\n", b'["penstock-journal", 7, ["d", 1.0]]\n'],
)
def test_what_stands_behind_a_broken_line_is_measured_again(tmp_path, broken):
    path = tmp_path / "j"
    fill(path, False)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], broken, *lines[3:]]))
    assert fill(path, True) == list("cde")
    assert keys(path) == list("abcde")


def test_no_change_of_a_byte_is_taken_for_a_measured_item(tmp_path):
    """The checksum's rule: every item that is taken over is one that was written, and the rest are measured again."""
    path = tmp_path / "j"
    fill(path, False)
    whole = path.read_bytes()
    end_of_heading = whole.index(b"\n") + 1
    for place in range(end_of_heading, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        journal = Journal(path, HEADING, True)
        assert all(value == [key, 1.5] for key, value in journal.items.items())
        assert journal.num_lost
    assert fill(path, True)
    assert path.read_bytes() == whole


def test_damaged_lines_are_counted_aloud_and_a_line_that_a_kill_cut_short_is_not(tmp_path):
    path, said = tmp_path / "j", []
    fill(path, False)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"?\n", *lines[3:5], lines[5][:-1]]))
    begin_journal(path, HEADING, False, said.append)
    taken = f"resumed: 2 measured items are taken over from {path}"
    assert said == [f"{path}: 3 lines are damaged, or follow a damaged one; what they held is measured again", taken]
    path.write_bytes(b"".join(lines[:3]) + lines[3][:-1])
    said.clear()
    begin_journal(path, HEADING, False, said.append)
    assert said == [taken]


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(tmp_path, resume):
    path = tmp_path / "j"
    path.write_bytes(b"my notes\n[]\n")
    with pytest.raises(InvalidInput, match="is no journal of this version of penstock; remove it, or name another"):
        Journal(path, HEADING, resume)
    assert path.read_bytes() == b"my notes\n[]\n"


def test_a_pipe_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / "j")
    with pytest.raises(InvalidInput, match="is no regular file"):
        Journal(tmp_path / "j", HEADING, False)


def test_a_journal_that_cannot_be_written_is_one_clear_error(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be written: Is a directory; name another output"):
        Journal(tmp_path, HEADING, False)
