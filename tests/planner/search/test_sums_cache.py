"""The store of sums: what is saved is loaded, whatever else a file holds counts as missing, and space is bounded."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from planner.search.space import sums_cache
from planner.search.space.sums_cache import load, save
from tests.support.repository import ROOT

KEY, OTHER = "0123456789abcdef" * 2, "f" * 32
ARRAYS = {"time_ns": np.arange(12.0).reshape(3, 4), "fits": np.array([True, False]), "names": np.array(["a", "bc"])}


@pytest.fixture(name="folder", autouse=True)
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "penstock" / "sums"


def assert_as_saved(found: object, expected: dict[str, np.ndarray] = ARRAYS) -> None:
    assert isinstance(found, dict)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_what_is_saved_is_loaded_and_may_be_replaced() -> None:
    assert load(KEY) is None
    save(KEY, ARRAYS)
    assert_as_saved(load(KEY))
    assert load(OTHER) is None
    later = {"file": np.zeros((0, 2), np.int32), "time_ns": np.float64(2.5).reshape(())}
    save(KEY, later)
    assert_as_saved(load(KEY), later)


def test_any_changed_byte_and_any_lost_end_make_a_file_count_as_missing_until_it_is_saved_again(folder: Path) -> None:
    save(KEY, ARRAYS)
    (path,) = folder.iterdir()
    whole, rng = path.read_bytes(), Random(5)
    for place in [0, 31, 32, len(whole) - 1, *rng.sample(range(len(whole)), 60)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
        assert load(KEY) is None
        path.write_bytes(whole[:place])
        assert load(KEY) is None
    save(KEY, ARRAYS)
    assert_as_saved(load(KEY))


class Trap:
    """Pickled, it makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._path), "w")


def test_a_file_from_elsewhere_counts_as_missing_and_runs_no_code(folder: Path, tmp_path: Path) -> None:
    """Even where its digest is right."""
    save(OTHER, ARRAYS)
    objects = tmp_path / "objects.npz"
    np.savez(objects, trap=np.array([Trap(tmp_path / "sprung")], object))
    large = tmp_path / "large.npz"
    np.savez_compressed(large, zeros=np.zeros(sums_cache.MOST_FILE_BYTES))
    bodies = [objects.read_bytes(), large.read_bytes(), pickle.dumps(Trap(tmp_path / "sprung")), b"", b"text"]
    (folder / KEY).write_bytes((folder / OTHER).read_bytes())
    assert load(KEY) is None
    for body in bodies:
        for digest in (b"", sums_cache._digest(KEY, body)):
            (folder / KEY).write_bytes(digest + body)
            assert load(KEY) is None
    assert not (tmp_path / "sprung").exists()


def test_what_is_no_file_or_too_large_a_one_counts_as_missing(folder: Path) -> None:
    save(OTHER, ARRAYS)
    os.mkfifo(folder / KEY)
    assert load(KEY) is None
    (folder / KEY).unlink()
    (folder / KEY).mkdir()
    assert load(KEY) is None
    save(KEY, ARRAYS)
    (folder / KEY).rmdir()
    with (folder / KEY).open("wb") as file:
        file.truncate(sums_cache.MOST_FILE_BYTES + 1)
    assert load(KEY) is None


def test_arrays_of_objects_and_keys_that_are_no_digest_are_refused() -> None:
    with pytest.raises(ValueError, match="Python objects"):
        save(KEY, {"objects": np.array([None])})
    for key in ("../../../home/user", "", "0123", KEY.upper()):
        with pytest.raises(ValueError, match="is no key"):
            save(key, ARRAYS)
        with pytest.raises(ValueError, match="is no key"):
            load(key)


def test_the_oldest_files_go_first_and_too_large_ones_are_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 10_000
    monkeypatch.setattr(sums_cache, "MOST_BYTES", 35_000)
    monkeypatch.setattr(sums_cache, "MOST_FILE_BYTES", 20_000)
    keys = [f"{number:032x}" for number in range(6)]
    for age, key in enumerate(reversed(keys[:5])):
        save(key, {"data": np.zeros(size, np.uint8)})
        os.utime(folder / key, (1_000 - age, 1_000 - age))  # so that key 0 is the oldest
    save(keys[5], {"data": np.zeros(size, np.uint8)})
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 35_000
    kept = [key for key in keys if load(key)]
    assert kept[-1] == keys[5]
    assert len(kept) == 3
    save(KEY, {"data": np.zeros(size, np.int64)})
    assert load(KEY) is None


@pytest.mark.parametrize("home", ["/dev/null", "/proc/1/none"])
def test_a_home_that_cannot_be_written_costs_only_time(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    save(KEY, ARRAYS)
    assert load(KEY) is None


def test_the_cache_is_the_users_and_relative_folders_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        save(KEY, ARRAYS)
        assert [path.name for path in (tmp_path / "home/.cache/penstock/sums").iterdir()] == [KEY]


def test_writers_and_readers_at_the_same_time_see_whole_files() -> None:
    """Each file holds one number, again and again; a torn one would hold two."""
    code = f"""
import numpy as np
from planner.search.space.sums_cache import load, save
for turn in range(40):
    save({KEY!r}, {{"data": np.full(5_000, {{number}} + turn)}})
    found = load({KEY!r})
    assert found is not None and len(set(found["data"].tolist())) == 1
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen([sys.executable, "-c", code.replace("{number}", str(100 * n))], env=environment)
        for n in range(3)
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]


def test_numpy_is_imported_only_where_arrays_are_read_or_written() -> None:
    load = f"from planner.search.space.sums_cache import load; load({KEY!r})"
    code = f"import sys; {load}; assert 'numpy' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
