"""The published JSON Schemas are the second opinion on every file: what one accepts the other must accept too."""

import json
import re
import shutil
from pathlib import Path
from random import Random

import pytest

from costmodel.errors import InvalidInput
from tests.support.published_schemas import published
from tests.support.repository import GOLDEN
from tests.support.schema_corpus import KINDS, READERS, broken, changed, golden, schema, validator

SAMPLE = 200
VERSIONS = {"plan": 3, "profile": 2}
"""Of the kinds that have had another one before."""
MEANING = (
    r"the stage's config makes",
    r"a stage needs at least one, each named once",
    r"entries in (each list|bytes)|step_ns needs|one entry each is needed",
    r"weight_activation_bytes",
    r"allowed are (cpu|a100)",  # a rank's device is one of the cluster's
    r"listed in order of their index",
    r"link (joins|'\w*' joins)|no \[\[link\]\]|no link joins|use the first",
    r"the file defines|no devices|the catalogue has no",
    r"edge -?\d+ -> -?\d+|the edges form a cycle",
    r"the stages use the ranks|ranks are numbered",
    r"lies? between 0 and \d+$",  # a span's rank is one of the timeline's
    r"which is not listed|does not hold|listed twice|form a cycle|listed before",
    r"memory of \d+ ranks",
    r"objective / lower bound - 1|(the|a) lower bound",
    r"do not make the",
    r"the operators give",
    r"must be a rising list|must start at 0 and rise",
    r"spans on one stream follow each other|overlaps",
    r"there is no such file|cannot be read",
    r"ranks are 0 to|the cluster has",
    r"lists of one length",
    r"pages are for \d+ hosts|all pages of a book are of|nothing moves to the first page",
    r"a part of a tensor of the shape|/parts/\d+/file",
)
"""What only a reader sees: how parts of a file fit together. A schema sees shapes."""


def written(kind: str, document: object, folder: Path) -> Path:
    """Write a document as its reader wants it: the cluster as TOML, the others as JSON."""
    path = folder / ("file.toml" if kind == "cluster" else "file.json")
    if kind == "cluster":
        shutil.copy(GOLDEN / "links.json", folder)
        assert isinstance(document, dict)
        path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in document.items()))
    else:
        path.write_text(json.dumps(document))
    return path


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def complaint(kind: str, document: object, folder: Path) -> str:
    """Return what the strict reader says against a document, nothing when it takes it."""
    try:
        READERS[kind](written(kind, document, folder))
    except InvalidInput as error:
        return str(error)
    return ""


def test_the_published_schemas_are_what_the_types_print() -> None:
    assert {path: path.read_text() for path in published()} == published()


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_schemas_and_say_what_they_describe(kind: str) -> None:
    validator(kind).check_schema(schema(kind))
    assert schema(kind)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema(kind)["title"] == f"Penstock {kind}, version {VERSIONS.get(kind, 1)}"


@pytest.mark.parametrize("kind", KINDS)
def test_both_accept_the_golden_files(kind: str, tmp_path: Path) -> None:
    for document in golden(kind):
        assert [error.message for error in validator(kind).iter_errors(document)] == []
        assert complaint(kind, document, tmp_path) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_on_files_broken_in_one_place_reader_and_schema_agree(kind: str, tmp_path: Path) -> None:
    for document in golden(kind):
        cases = [case for case in broken(document) if kind != "cluster" or "null" not in case[0]]  # TOML has no null
        for what, wrong in Random(1).sample(cases, min(SAMPLE, len(cases))):
            said, valid = complaint(kind, wrong, tmp_path), validator(kind).is_valid(wrong)
            if not said:
                assert valid, f"{what}: only the schema refuses"
            elif valid:
                assert any(re.search(meaning, said) for meaning in MEANING), f"{what}: only the reader refuses: {said}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("key", "value"), [("version", 4), ("version", 0), ("format", "penstock-else"), ("version", "1")]
)
def test_another_version_or_format_is_refused_by_both(kind: str, key: str, value: object, tmp_path: Path) -> None:
    document = changed(next(iter(golden(kind))), (key,), value)
    assert not validator(kind).is_valid(document)
    assert f"/{key}: found {json.dumps(value)}" in complaint(kind, document, tmp_path)


def test_negative_times_are_refused_by_both(tmp_path: Path) -> None:
    for kind, pointer in (
        ("plan", ("prediction", "step_time_ns")),
        ("profile", ("operators", 0, "forward_ns", 0)),
        ("costs", ("stages", 0, "forward_ns")),
        ("links", ("classes", "p2p", "ranges", 0, "latency_ns")),
        ("timeline", ("spans", 0, 3)),
        ("cluster", ("link", 0, "latency_us")),
    ):
        document = changed(next(iter(golden(kind))), pointer, -1)
        assert not validator(kind).is_valid(document)
        assert f"/{'/'.join(map(str, pointer))}: found -1" in complaint(kind, document, tmp_path)


def test_whole_numbers_beyond_a_signed_word_are_refused_by_both(tmp_path: Path) -> None:
    document = changed(next(iter(golden("plan"))), ("prediction", "step_time_ns"), 2**63)
    assert not validator("plan").is_valid(document)
    assert "must lie between 0 and 9223372036854775807" in complaint("plan", document, tmp_path)


def test_a_float_in_place_of_a_whole_number_is_refused_by_the_reader_though_a_schema_counts_it(tmp_path: Path) -> None:
    document = changed(next(iter(golden("plan"))), ("prediction", "step_time_ns"), 124.0)
    assert validator("plan").is_valid(document)  # JSON Schema holds 124.0 to be an integer
    assert "found 124.0; a whole number is needed here" in complaint("plan", document, tmp_path)
