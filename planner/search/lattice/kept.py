"""Compiled kernels of older sources are deleted before any is read (`planner.search.compiled`)."""

from functools import cache
from pathlib import Path

from planner.search.compiled import keeps


@cache
def prepare() -> None:
    """Delete kernels that are older than their sources, once a process."""
    here = Path(__file__).parent
    keeps(here / "__pycache__", "way_of", here / "graph.py", here / "kernels.py")
