"""The documentation as a site (`make docs`): Markdown by MyST, nothing fetched from the network."""

import tomllib
from pathlib import Path

_ABOUT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]

project = "Penstock"
release = version = _ABOUT["version"]
html_title = f"{project} {release}"
html_theme = "furo"
html_copy_source = False

extensions = ["myst_parser"]
myst_heading_anchors = 4
highlight_language = "none"  # indented blocks are commands, formulas and figures
