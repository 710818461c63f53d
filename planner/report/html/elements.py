"""HTML and SVG as text that cannot be broken: what is not an element already is escaped, wherever it came from.

Leaves out what the elements mean.
"""

from html import escape

from costmodel.printing import printable
from planner.report.summary.text import Table


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element.

    Parameters
    ----------
    name : str
    *children : str
        Elements, and text that is escaped.
    **attributes : object
        ``class_`` becomes ``class``, ``data_tip`` becomes ``data-tip``; None is left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Return elements and texts one behind the other."""
    return Markup("".join(child if isinstance(child, Markup) else _text(child) for child in children))


def _text(text: str) -> str:
    return escape(printable(text, kept="\n"))


def table(content: Table, widest: int = 60) -> Markup:
    """Return a table under its title; columns with cells of more than `widest` letters break into lines."""
    long = [any(len(row[i]) > widest for row in content.rows) for i in range(len(content.columns))]
    head = tag(
        "tr",
        *(
            tag("th", column, scope="col", class_="long" if wide else None)
            for column, wide in zip(content.columns, long, strict=True)
        ),
    )
    rows = []
    for first, *rest in content.rows:
        cells = [tag("td", cell, class_="long" if wide else None) for cell, wide in zip(rest, long[1:], strict=True)]
        rows.append(tag("tr", tag("th", first, scope="row"), *cells))
    body = tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="wide", tabindex=0)
    return joined(*([tag("p", content.title, class_="note")] if content.title else []), body)
