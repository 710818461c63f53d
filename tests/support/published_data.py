"""Published figures: the small ones beside the tests, the large ones in the folder that PENSTOCK_DATA names."""

import csv
import os
from pathlib import Path

import pytest

from tests.support.repository import DATA, ROOT

BESIDE = DATA / "published"


def folder(*parts: str) -> Path:
    """Return a path in the data folder, or skip the test loudly."""
    default = ROOT.parent / "shared" / "data"
    path = Path(os.environ.get("PENSTOCK_DATA", default), *parts)
    if not path.exists():
        pytest.skip(f"{path} is not there: set PENSTOCK_DATA to the folder with the published data")
    return path


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, lines that start with # left out."""
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
