"""A checkpoint's files by themselves: values as JSON, tensors put together from parts, folders that are refused."""

import json
import math
import random
from collections import Counter

import pytest
import torch

from costmodel.errors import DoesNotMatch, InvalidInput
from executor.model.tensor_file import NAMES, TensorFile, write_tensors
from executor.state.checkpoint_index import INDEX, Checkpoint, Index, SavedPart, Stored, file_name, identity_of
from executor.state.plain_values import decode, encode

VALUES = {
    "numbers": [1, -0.1, True, None, 2**70],
    "nothing finite": (math.inf, -math.inf),
    "keys": {1: "a", (2, 3): "b", "$": "c"},
    "counter": Counter([3, 3, 5]),
    "bytes": b"\x00\xff",
    "random": random.getstate(),
    "tensor": torch.arange(6).reshape(2, 3),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was_by_way_of_json(name):
    kept = {}
    text = json.dumps(encode(VALUES[name], name, lambda place, t: kept.setdefault(place, t) is t and place))
    found = decode(json.loads(text), kept.__getitem__)
    assert type(found) is type(VALUES[name])
    assert torch.equal(found, VALUES[name]) if name == "tensor" else found == VALUES[name]


def test_a_number_of_numpy_is_a_number_and_an_array_an_array():
    numpy = pytest.importorskip("numpy")
    kept = {}
    value = {"state": numpy.random.get_state(), "one": numpy.float64(0.1)}
    found = decode(encode(value, "value", lambda place, t: kept.setdefault(place, t) is t and place), kept.__getitem__)
    assert found["one"] == 0.1
    assert all(numpy.array_equal(a, b) for a, b in zip(found["state"], value["state"], strict=True))


@pytest.mark.parametrize("value", [lambda: 0, object(), {"a": [{1, 2}]}], ids=["function", "object", "set"])
def test_what_json_has_no_word_for_is_refused_by_its_place(value):
    with pytest.raises(DoesNotMatch, match=r"^extra.* is a (function|object|set), which a checkpoint does not take"):
        encode(value, "extra", lambda place, tensor: place)


def test_what_is_nested_too_deeply_is_refused():
    value = []
    value.append(value)
    with pytest.raises(DoesNotMatch, match="nested deeper"):
        encode(value, "extra", lambda place, tensor: place)


@pytest.mark.parametrize("dtype", NAMES)
def test_tensors_of_every_type_are_written_and_read(dtype, tmp_path):
    value = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype).t()  # with gaps
    write_tensors(tmp_path / "file", {"x": value, "one": value[0, 0], "none": value[:0]}, {"id": "5"})
    file = TensorFile(tmp_path / "file")
    assert file.metadata == {"id": "5"}
    for name, right in (("x", value), ("one", value[0, 0]), ("none", value[:0])):
        found = file.rows(name)
        assert (found.dtype, found.shape) == (dtype, right.shape)
        assert torch.equal(found.to(torch.complex128), right.to(torch.complex128))
    assert torch.equal(file.rows("x", 1, 2).to(torch.complex128), value[1:3].to(torch.complex128))


def saved(folder, whole, identity="ab", rows=((0, 2), (2, 5))):
    folder.mkdir(exist_ok=True)
    files, parts = [], []
    for rank, (first, stop) in enumerate(rows):
        name = file_name(3, identity, rank)
        size = write_tensors(folder / name, {"w": whole[first:stop]}, identity_of(identity, 3, rank))
        files.append((name, size))
        parts.append(SavedPart(rank, (first, 0), (stop - first, whole.shape[1])))
    Index(identity, 3, files, {"w": Stored("F32", tuple(whole.shape), tuple(parts))}).write(folder)
    return folder


BOXES = [((0, 0), (5, 4)), ((1, 1), (3, 2)), ((2, 0), (3, 4)), ((0, 3), (1, 1)), ((4, 0), (0, 4))]


@pytest.mark.parametrize(("start", "shape"), BOXES)
def test_any_part_of_a_tensor_is_put_together_from_what_ranks_wrote(start, shape, tmp_path):
    whole = torch.randn(5, 4)
    found = Checkpoint(saved(tmp_path, whole)).read("w", (start, shape))
    assert torch.equal(found, whole[start[0] : start[0] + shape[0], start[1] : start[1] + shape[1]])


def test_a_tensor_of_which_a_part_is_missing_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="do not make it up"):
        Checkpoint(saved(tmp_path, torch.randn(5, 4), rows=((0, 2), (3, 5)))).read("w")


def test_a_second_checkpoint_takes_the_place_of_the_first_and_of_what_killed_ones_left(tmp_path):
    saved(tmp_path, torch.randn(5, 4), "ab")
    (tmp_path / file_name(2, "cd", 7)).write_bytes(b"half")
    (tmp_path / "mine.txt").write_text("stays")
    saved(tmp_path, torch.randn(5, 4), "ef")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {INDEX, "mine.txt", file_name(3, "ef", 0), file_name(3, "ef", 1)}


def _of_another(folder):
    other = saved(folder.parent / "other", torch.randn(5, 4), "cd")
    (folder / file_name(3, "ab", 1)).write_bytes((other / file_name(3, "cd", 1)).read_bytes())


def _cut_off(folder):
    path = folder / file_name(3, "ab", 1)
    path.write_bytes(path.read_bytes()[:-4])


def _gone(folder):
    (folder / file_name(3, "ab", 0)).unlink()


def _outside(folder):
    index = json.loads((folder / INDEX).read_text())
    index["files"][0]["name"] = "../other/" + index["files"][0]["name"]
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_of_another, "two checkpoints stand in one folder"),
        (_cut_off, "cut off"),
        (_gone, "is not there"),
        (_outside, "the name of a rank's file"),
    ],
)
def test_a_folder_that_is_no_whole_checkpoint_is_refused(spoil, words, tmp_path):
    folder = saved(tmp_path / "folder", torch.randn(5, 4))
    spoil(folder)
    with pytest.raises((DoesNotMatch, InvalidInput), match=words):
        Checkpoint(folder)


@pytest.mark.parametrize(("name", "words"), [("", "holds no checkpoint"), (".metadata", "pickled")])
def test_a_folder_without_an_index_of_ours_is_refused_unread(name, words, tmp_path):
    if name:
        (tmp_path / name).write_bytes(b"no pickle that anybody reads")
    with pytest.raises(DoesNotMatch, match=words):
        Checkpoint(tmp_path)
