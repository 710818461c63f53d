"""One HTML page that is complete in itself: tables and a figure, inline, without scripts or other files.

The same content gives the same bytes. Leaves out what stands on it.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from costmodel.files import write_text
from planner.report.text import Table
from simulator.charts import figure_svg

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; color: #1b1b1b; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: 0.3em 0.8em; text-align: right; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; margin-top: 2em; font-family: system-ui, sans-serif; }
"""


def write_page(path: str | Path, title: str, tables: Sequence[Table], figure: Figure) -> None:
    """Write a page of tables, each under its own title, and a figure."""
    body = "\n".join([f"<h1>{escape(title)}</h1>", *map(_table, tables), figure_svg(figure)])
    head = f'<meta charset="utf-8">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>'
    write_text(path, f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n')


def _table(table: Table) -> str:
    heading = f"<h2>{escape(table.title)}</h2>\n" if table.title else ""
    rows = [_cells("th", table.columns), *(_cells("td", row) for row in table.rows)]
    return f'{heading}<div class="wide"><table>\n' + "\n".join(rows) + "\n</table></div>"


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"
