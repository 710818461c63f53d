"""Where published data lies: the folder that PENSTOCK_DATA names, or the one that is shared beside the repository."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def published_data(*parts: str) -> Path:
    """Return a path in the folder with the published data."""
    return Path(os.environ.get("PENSTOCK_DATA", ROOT.parent / "shared" / "data"), "published", *parts)
