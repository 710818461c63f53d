"""Files that are broken in one place each, made from a good one; and both opinions on a file."""

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from costmodel.files import read_toml
from costmodel.machines.cluster import read_cluster
from costmodel.machines.links import read_links
from costmodel.model.profile import read_profile
from costmodel.stages.costs_file import read_costs
from executor.state.checkpoint_index import read_index_file
from planner.plan import read_plan
from planner.plan.book import read_book
from simulator.timeline import read_timeline
from tests.support.repository import GOLDEN

KINDS = ("book", "checkpoint", "cluster", "costs", "links", "plan", "profile", "timeline")
READERS: dict[str, Callable[[Path], object]] = {
    "book": read_book,
    "checkpoint": read_index_file,
    "cluster": read_cluster,
    "costs": read_costs,
    "links": read_links,
    "plan": read_plan,
    "profile": read_profile,
    "timeline": read_timeline,
}
WRONG_VALUES: tuple[object, ...] = ("x", "", -1, 1.5, True, None, [], {}, 2**63, [[]])


@cache
def schema(kind: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((files("costmodel") / "schemas" / f"{kind}.schema.json").read_text())
    return found


@cache
def validator(kind: str) -> Draft202012Validator:
    known = [(f"{k}.schema.json", Resource.from_contents(schema(k))) for k in KINDS]
    return Draft202012Validator(schema(kind), registry=Registry().with_resources(known))


def golden(kind: str) -> Iterator[dict[str, object]]:
    """Yield the good documents of a kind."""
    if kind == "cluster":
        tree = read_toml(GOLDEN / "cluster.toml").value
        assert isinstance(tree, dict)
        yield tree
    else:
        for path in sorted(GOLDEN.glob(f"{kind}*.json")):
            yield json.loads(path.read_text())


def broken(document: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (what was done, document) with one thing wrong, in every place of it."""
    for pointer, value in places(document):
        if pointer:
            yield f"{pointer} is missing", changed(document, pointer, None, drop=True)
            for wrong in WRONG_VALUES:
                yield f"{pointer} is {json.dumps(wrong)}", changed(document, pointer, wrong)
        if isinstance(value, dict) and "extra" not in pointer and "provenance" not in pointer:
            yield f"{pointer} has an unknown key", changed(document, (*pointer, "unknown"), 1)


def places(value: object, pointer: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], object]]:
    yield pointer, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*pointer, key))


def changed(
    document: dict[str, object], pointer: tuple[str | int, ...], value: object, *, drop: bool = False
) -> dict[str, object]:
    found = copy.deepcopy(document)
    parent: object = found
    for key in pointer[:-1]:
        parent = parent[key]  # type: ignore[index]
    if drop:
        del parent[pointer[-1]]  # type: ignore[attr-defined]
    else:
        parent[pointer[-1]] = value  # type: ignore[index]
    return found
