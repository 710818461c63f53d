"""Where the repository stands, and the tests' own data in it: the one place that counts folders up from a file."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
GOLDEN = DATA / "golden"
