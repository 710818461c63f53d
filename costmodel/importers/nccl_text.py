"""The text that nccl-tests and rccl-tests print, as runs: header, ranks, column names, rows, footer.

What a launcher or a log puts before a line (mpirun's ``[1,0]<stdout>:``, srun's ``0:``, times and names of pods) is
passed over, for comments begin with ``#`` and rows with two numbers and a type. Columns are found by their names, which
differ by version. Leaves out what runs must keep (`costmodel.importers.nccl_runs`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from costmodel.errors import InvalidInput
from costmodel.importers.nccl_runs import NcclOutput, NcclPart, NcclRank, NcclRow, rate, time_us

PROGRAM = re.compile(r"(?<!\w)(\w+?)_perf(?:_mpi)?\b")  # from the start of a word alone: a long one is read once
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_HEADER = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+\d+")
_NAMED = re.compile(r"#\s*Collective test (?:starting|concluded):\s*(\w+?)_perf(?:_mpi)?\b")
_RANK = re.compile(r"#\s*Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?.*?\bdevice\s+\d+\s+\[[^\]]{0,99}\]\s*(.*)")
_COLUMNS = re.compile(r"#\s*(size\s+count\s+type\s.*)")
_FOOTER = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18})\s+(OK|FAILED)")
MOST_DIGITS = 18
"""Of a size in bytes."""
_ROW = re.compile(r"(?<![\w.])(\d+\s+\d+\s+[a-z]\w*\s+\S+\s+(?:-?[\d.]|N/A).*)")


@dataclass
class _Open:
    """A run of which the footer has not come yet."""

    place: str
    program: str | None = None
    ranks: list[NcclRank] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[NcclRow] = field(default_factory=list)


def read_runs(text: str, path: str) -> list[NcclOutput]:
    """Return the runs of a text.

    Raises
    ------
    InvalidInput
        Names the line at which a run is not whole.
    """
    runs: list[NcclOutput] = []
    said: str | None = None  # the program that was named last
    run: _Open | None = None
    for place, line in _lines(text, path):
        comment = line[line.find("#") :] if "#" in line else ""
        if own := _NAMED.match(comment):
            said = own[1]
            if not run and runs and "concluded" in comment:
                runs[-1], said = replace(runs[-1], program=said), None
        elif _HEADER.match(comment):
            if run:
                raise InvalidInput(
                    f"{place}: a second run begins before that of {run.place} has its footer: the outputs of several "
                    "processes (nccl-tests built without MPI prints one each), or the first is cut off; give one run"
                )
            run, said = _Open(place, said), None
        elif run is None:
            _check_outside(place, line, comment)
            named = PROGRAM.search(line)
            said = named[1] if named else said
        elif footer := _FOOTER.match(comment):
            runs.append(_closed(run, place, footer))
            run = None
        else:
            _inside(run, place, line, comment)
    if run:
        raise InvalidInput(
            f"{run.place}: the run that begins here has no footer ('# Out of bounds values : 0 OK'); was the output "
            "cut off?"
        )
    if not runs:
        raise InvalidInput(f"{path}: no line '# nThread ... nGpus ...'; keep nccl-tests' whole output, its header too")
    return runs


def _lines(text: str, path: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_COLOR.sub("", text).splitlines(), 1):
        yield f"{path}: line {number}", line


def _closed(run: _Open, place: str, footer: re.Match[str]) -> NcclOutput:
    num_wrong = max(int(footer[1]), int(footer[2] == "FAILED"))
    return NcclOutput(run.program, run.place, tuple(run.ranks), len(run.ranks), tuple(run.rows), num_wrong, place)


def _check_outside(place: str, line: str, comment: str) -> None:
    if _RANK.match(comment) or _FOOTER.match(comment) or (not comment and _ROW.search(line)):
        raise InvalidInput(
            f"{place}: {line.strip()[:60]!r} belongs to no run: the line '# nThread ... nGpus ...' comes first; keep "
            "nccl-tests' whole output"
        )


def _inside(run: _Open, place: str, line: str, comment: str) -> None:
    """Take one line of a run."""
    if rank := _RANK.match(comment):
        run.ranks.append(NcclRank(int(rank[1]), int(rank[2] or 0), rank[3].strip() or "cuda", place))
    elif names := _COLUMNS.match(comment):
        run.columns = names[1].split()
        if "time" not in run.columns:
            raise InvalidInput(f"{place}: no column 'time' ({names[1][:60]}); times of the host's calls (-C) are none")
    elif not comment and (row := _ROW.search(line)):
        if not run.columns:
            raise InvalidInput(f"{place}: a row before the line of column names ('# size count type ...')")
        run.rows.append(_row(row[1].split(), run.columns, place))


def _row(cells: list[str], columns: list[str], place: str) -> NcclRow:
    times = [i for i, name in enumerate(columns) if name == "time"]
    num_cells = len(columns) + ("timestamp" in columns)  # a day and a time
    if len(cells) != num_cells:
        raise InvalidInput(
            f"{place}: the row {' '.join(cells)[:60]!r} has {len(cells)} cells, and the columns are {num_cells}; was "
            "it cut off, or do several outputs share the line?"
        )
    if len(cells[0]) > MOST_DIGITS:
        raise InvalidInput(f"{place}: a row of {cells[0][:MOST_DIGITS]}... bytes, which is beyond any transfer")
    named = {name: cells[i] for i, name in enumerate(columns[: times[0]])}
    parts = tuple(part for i in times if (part := _part(cells[i : i + 4], columns[i : i + 4], place)))
    if not parts:
        raise InvalidInput(f"{place}: the row {' '.join(cells)[:60]!r} has no time in its columns 'time'")
    return NcclRow(int(cells[0]), (named["type"], named.get("redop", ""), named.get("root", "")), parts, place)


def _part(cells: list[str], names: list[str], place: str) -> NcclPart | None:
    """Read a time and what follows it; nothing where the program does not run so."""
    told = dict(zip(names, cells, strict=True))
    if told["time"] == "N/A":
        return None
    try:
        time, wrong = float(told["time"]), told.get("#wrong", "N/A")
        num_wrong = 0.0 if wrong == "N/A" else float(wrong)
    except ValueError:
        raise InvalidInput(f"{place}: {' '.join(cells)!r} are no time, rates and number of wrong values") from None
    rates = [rate(told[name], place) if name in told else None for name in ("algbw", "busbw")]
    return NcclPart(time_us(time, place), rates[0], rates[1], num_wrong)
