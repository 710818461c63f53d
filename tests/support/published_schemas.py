"""The JSON Schemas that the package comes with, as its types print them; run as a module it renews the files."""

import json
from pathlib import Path
from typing import Any

from costmodel.documents import Document
from costmodel.machines.cluster import CLUSTER_FILE
from costmodel.machines.links import LINKS
from costmodel.model.profile import PROFILE
from costmodel.stages.costs_file import COSTS
from executor.state.checkpoint_index import CHECKPOINT
from planner.plan.book import BOOK
from planner.plan.file import PLAN
from simulator.timeline import TIMELINE
from tests.support.repository import ROOT

FOLDER = ROOT / "costmodel" / "schemas"
DOCUMENTS: tuple[Document[Any], ...] = (BOOK, CHECKPOINT, CLUSTER_FILE, COSTS, LINKS, PLAN, PROFILE, TIMELINE)
WIDTH = 120


def printed(value: object, indent: str = "") -> str:
    """Return JSON whose parts stand in one line where they fit into it."""
    flat = json.dumps(value)
    if len(indent) + len(flat) <= WIDTH - 20 or not isinstance(value, dict | list):
        return flat
    inner = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + printed(each, inner) for each in value) + f"\n{indent}]"
    rows = (f"{inner}{json.dumps(key)}: {printed(each, inner)}" for key, each in value.items())
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def published() -> dict[Path, str]:
    """Return the text of each file."""
    schemas = [document.schema() for document in DOCUMENTS]
    return {FOLDER / schema["$id"]: printed(schema) + "\n" for schema in schemas}


if __name__ == "__main__":
    for path, text in published().items():
        path.write_text(text)
