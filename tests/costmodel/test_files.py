"""The one reader and writer of files: what it refuses, in which words, and that a write is whole or not at all."""

import gzip
import json
import os
from pathlib import Path

import pytest

from costmodel.documents import document
from costmodel.errors import InvalidInput, UsageError
from costmodel.files import Node, read_json, read_toml, write_json, write_text
from tests.properties.killed_writes import kill_failures

NUM_KILLS = 50


def refusal(path: Path, content: str | bytes) -> str:
    """Return what the reader says about a content, without the file's name."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInput) as caught:
        (read_toml if path.suffix == ".toml" else read_json)(path)
    assert caught.value.exit_code == 3
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


BROKEN = [
    ("NaN", '{"a": NaN}', "found NaN; only finite numbers are allowed"),
    ("infinity", '{"a": [-Infinity]}', "found -Infinity; only finite numbers are allowed"),
    ("a number that overflows", '{"a": 1e999}', "found 1e999; only finite numbers are allowed"),
    ("a duplicate key", '{"a": {"b": 1, "b": 1}}', "the key 'b' occurs twice in one object; keep one of them"),
    ("half a file", '{"a": [1,', "not JSON at line 1: Expecting value; was the file cut off?"),
    ("nothing", "", "not JSON at line 1: Expecting value; was the file cut off?"),
    ("two documents", "{} {}", "not JSON at line 1: Extra data; was the file cut off?"),
    ("deep nesting", "[" * 100 + "]" * 100, "nested too deeply; at most 64 levels are allowed"),
    ("very deep nesting", "[" * 100_000 + "]" * 100_000, "nested too deeply; at most 64 levels are allowed"),
    ("deep objects", '{"a":' * 100 + "1" + "}" * 100, "nested too deeply; at most 64 levels are allowed"),
    ("a byte order mark", b"\xef\xbb\xbf{}", "begins with a byte order mark; save it as UTF-8 without one (BOM)"),
    ("bytes that are no text", b'{"a": "\xff"}', "byte 7 is not UTF-8 text; is this the right file?"),
]


@pytest.mark.parametrize(("what", "content", "words"), BROKEN, ids=[row[0] for row in BROKEN])
def test_json_is_refused_for(what: str, content: str | bytes, words: str, tmp_path: Path) -> None:
    assert refusal(tmp_path / "f.json", content) == words


def test_a_number_of_too_many_digits_is_refused(tmp_path: Path) -> None:
    assert "digits" in refusal(tmp_path / "f.json", '{"a": ' + "9" * 5000 + "}")


def test_toml_follows_the_same_rules(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    assert refusal(path, "a = nan") == "found nan; only finite numbers are allowed"
    assert refusal(path, "a = -inf") == "found -inf; only finite numbers are allowed"
    assert refusal(path, "a = 1e999") == "found 1e999; only finite numbers are allowed"
    assert refusal(path, "a = 1\na = 2").startswith("not TOML: ")
    assert refusal(path, b"\xef\xbb\xbfa = 1").startswith("begins with a byte order mark")
    assert refusal(path, "a = " + "[" * 5000 + "]" * 5000) == "nested too deeply; at most 64 levels are allowed"


def test_a_gzip_file_must_be_whole(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"a": 1}')
    path = tmp_path / "f.json.gz"
    path.write_bytes(whole)
    assert read_json(path).value == {"a": 1}
    for content in (whole[: len(whole) // 2], whole[:-4], b'{"a": 1}', whole[:12] + b"\0\0\0\0" + whole[16:]):
        assert refusal(path, content) == "not a whole gzip file, though its name ends in .gz"


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no\.json: there is no such file; check the name and the working folder"):
        read_json(tmp_path / "no.json")
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        read_json(tmp_path)


NODES = [
    (lambda n: n.integer(), True, "found true; a whole number is needed here"),
    (lambda n: n.integer(), 1.0, "found 1.0; a whole number is needed here"),
    (lambda n: n.integer(), "1", 'found "1"; a whole number is needed here'),
    (lambda n: n.integer(1), 0, "found 0; the number must lie between 1 and 9223372036854775807"),
    (lambda n: n.integer(0, 3), 4, "found 4; the number must lie between 0 and 3"),
    (lambda n: n.number(), None, "found null; a number is needed here"),
    (lambda n: n.number(), -0.5, "found -0.5; the number must lie between 0 and 9.22337e+18"),
    (lambda n: n.number(), 10**400, "the number must lie between 0 and 9.22337e+18"),
    (lambda n: n.text(), 5, "found 5; a string is needed here"),
    (lambda n: n.text(("a", "b")), "c", 'found "c"; allowed are a, b'),
    (lambda n: n.flag(), 1, "found 1; true or false is needed here"),
    (lambda n: n.items(), {}, "found {}; a list is needed here"),
    (lambda n: n.entries(), [], "found []; an object is needed here"),
    (lambda n: n.members(("a",)), {}, "the key 'a' is missing; it must hold a"),
    (lambda n: n.members(("a",), ("b",)), {"a": 1, "c": 2}, "unknown key 'c'; allowed are a, b (what is yours goes"),
]


@pytest.mark.parametrize(("read", "value", "words"), NODES, ids=[row[2][:40] for row in NODES])
def test_a_value_is_refused_with_file_pointer_what_was_found_and_what_is_allowed(
    read: object, value: object, words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(Node(value, "/x/0", "plan.json"))  # type: ignore[operator]
    assert str(caught.value).startswith("plan.json: /x/0: ")
    assert words in str(caught.value)


def test_pointers_escape_what_json_pointers_escape() -> None:
    node = Node({"a/b": {"~": "x"}}, "", "f").entries()["a/b"].entries()["~"]
    with pytest.raises(InvalidInput, match=r'^f: /a~1b/~0: found "x"; a whole number is needed here$'):
        node.integer()


def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(InvalidInput) as caught:
        Node("x" * 1000, "/a", "f").integer()
    assert len(str(caught.value)) < 120


def test_rules_of_a_type_get_the_place_in_front_and_only_once() -> None:
    def broken() -> int:
        raise InvalidInput("a stage has no ranks")

    node = Node({}, "/stages/1", "f")
    with pytest.raises(InvalidInput, match=r"^f: /stages/1: a stage has no ranks$"):
        Node({}, "", "f").build(lambda: node.build(broken))


def test_only_known_formats_and_versions_are_read() -> None:
    def refused(value: object) -> str:
        with pytest.raises(InvalidInput) as caught:
            document(Node(value, "", "f"), "penstock-plan", 2, ())
        return str(caught.value)

    assert document(Node({"format": "penstock-plan", "version": 1}, "", "f"), "penstock-plan", 2, ())
    assert refused([]) == "f: /: found []; an object is needed here"
    assert refused({}) == "f: /format: found null; a file of format 'penstock-plan' is needed here"
    assert refused({"format": "penstock-plan", "version": 3}) == (
        "f: /version: found 3; this release reads version 1 and 2 of penstock-plan: "
        "write the file again with a matching release"
    )
    assert "/version: found true" in refused({"format": "penstock-plan", "version": True})
    assert "unknown key 'mine'" in refused({"format": "penstock-plan", "version": 2, "mine": 1})


def test_what_is_the_writers_own_must_be_an_object() -> None:
    top = {"format": "k", "version": 1, "extra": [1]}
    with pytest.raises(InvalidInput, match=r"^f: /extra: found \[1\]; an object is needed here$"):
        document(Node(top, "", "f"), "k", 1, (), ("extra",))


def test_writing_makes_folders_keeps_nothing_temporary_and_respects_the_umask(tmp_path: Path) -> None:
    target = tmp_path / "new" / "plan.json"
    write_json(target, "k", 1, {"a": 1})
    assert json.loads(target.read_text()) == {"format": "k", "version": 1, "a": 1}
    assert list(target.parent.iterdir()) == [target]
    current = os.umask(0)
    os.umask(current)
    assert target.stat().st_mode & 0o777 == 0o666 & ~current


def test_what_cannot_be_written_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written: "):
        write_text(tmp_path / "file" / "plan.json", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        write_text(tmp_path / "folder", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "f.json", "k", 1, {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_plan_write_killed_at_random_moments_leaves_the_old_or_the_new_file_whole() -> None:
    """1,000 kills: ``python -m benchmarks.reliability --full --only killed-writes``."""
    assert kill_failures(NUM_KILLS) == []
