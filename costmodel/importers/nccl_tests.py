"""Output of nccl-tests, text or ``-J`` JSON, as measured links.

Out-of-place times count (in-place ones where there are no others). Sizes are those of the whole buffer, as
nccl-tests and `penstock links` both give them. The JSON's environment block, its arguments and host names
are read over and never stored. Leaves out broadcast, reduce, gather and scatter.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import Node, read_json
from costmodel.machines.link_fit import Table, fit_ranges
from costmodel.machines.links import LinkClass, Links

MOST_US, MOST_DIGITS = 1e12, 18
"""Of a time, eleven days; of a size in bytes."""
_CLASSES = {
    "sendrecv": "p2p",
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
_PROGRAM = re.compile(r"(?<!\w)(\w+?)_perf\b")  # from the start of a word alone: a long one is read once
_DEVICE = re.compile(r"^#\s+Rank\s+\d+.*?\bdevice\s+\d+\s+\[[^\]\n]*\]\s*(.*)$", re.MULTILINE)
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\S*\s+\S+\s+-?\d+\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NcclRun:
    """One program's output: class of transfers, GPU, number of ranks and the table (bytes, ns)."""

    kind: str
    device: str
    num_ranks: int
    table: Table


def read_nccl_tests(paths: Sequence[str | Path]) -> Links:
    """Read the output of one or several programs on the same ranks.

    Raises
    ------
    InvalidInput
        When a file is no such output, two are of one kind, or their ranks differ.
    """
    classes: dict[str, LinkClass] = {}
    runs = [_read(Path(path)) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        if run.kind in classes:
            raise InvalidInput(f"{path}: a second measurement of {run.kind}; give one file of each kind")
        if run.num_ranks != runs[0].num_ranks:
            raise InvalidInput(
                f"{path}: {run.num_ranks} ranks, {paths[0]} has {runs[0].num_ranks}; give files of one job"
            )
        classes[run.kind] = LinkClass(fit_ranges(run.table), run.table)
    return Links("nccl", runs[0].device, runs[0].num_ranks, classes)


def _read(path: Path) -> NcclRun:
    try:
        head = path.read_bytes()[:1]
        is_json = head in (b"{", b"\x1f") or path.name.endswith(".json")
        return _from_json(read_json(path)) if is_json else _from_text(path, path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}; nccl-tests' text or -J JSON is needed") from None


def _kind(found: str | None, place: str) -> str:
    if found not in _CLASSES:
        raise InvalidInput(
            f"{place}: {'no nccl-tests program is named' if found is None else f'the program is {found}_perf'}; "
            f"read are {', '.join(f'{name}_perf' for name in _CLASSES)} (named in the output, or by the file's name)"
        )
    return _CLASSES[found]


def _from_text(path: Path, text: str) -> NcclRun:
    named = _PROGRAM.search(text) or _PROGRAM.search(path.name)
    kind = _kind(named.group(1) if named else None, str(path))
    devices = _DEVICE.findall(text)
    if not devices:
        raise InvalidInput(f"{path}: no line '#  Rank 0 ... device 0 [...]'; keep nccl-tests' whole output")
    rows = [line.split() for line in text.splitlines() if _ROW.match(line)]
    if not rows:
        raise InvalidInput(f"{path}: no row of times; lines of size, count, type, redop, root, time ... are needed")
    table = {}
    for cells in rows:
        if len(cells[0]) > MOST_DIGITS:
            raise InvalidInput(f"{path}: a row of {cells[0][:MOST_DIGITS]}... bytes, which is beyond any transfer")
        try:
            table[int(cells[0])] = _ns(float(cells[5]))
        except (IndexError, ValueError):
            raise InvalidInput(f"{path}: the row {' '.join(cells)!r} has no time in its sixth column") from None
    return NcclRun(kind, devices[0].strip() or "cuda", len(devices), _rows(table, str(path)))


def _from_json(root: Node) -> NcclRun:
    members = root.entries()
    for key in ("args", "config", "results"):
        if key not in members:
            root.fail(f"no {key!r}; the JSON that nccl-tests writes with -J has version, args, config and results")
    arguments = members["args"].texts()
    named = _PROGRAM.search(arguments[0]) if arguments else None
    kind = _kind(named.group(1) if named else None, root.file)
    devices = members["config"].entries().get("devices")
    names = [_needed(item, "device_info").text() for item in devices.items()] if devices else []
    if not names:
        members["config"].fail("no devices; they say how many ranks took part")
    table = {}
    for row in members["results"].items():
        fields = row.entries()
        times = fields.get("out_of_place")
        if times is None or times.value is None:
            times = _needed(row, "in_place")
        entries = times.entries()
        if "size" not in fields or "time" not in entries:
            row.fail("each result has size and out_of_place.time in microseconds (run without -C)")
        table[fields["size"].integer()] = _measured(entries["time"])
    return NcclRun(kind, names[0].strip(), len(names), _rows(table, root.file))


def _needed(node: Node, key: str) -> Node:
    found = node.entries()
    if key not in found:
        node.fail(f"no {key!r}, which nccl-tests writes with -J")
    return found[key]


def _measured(node: Node) -> int:
    return node.build(lambda: _ns(node.number()))


def _ns(microseconds: float) -> int:
    if not 0 <= microseconds <= MOST_US:
        raise InvalidInput(f"{microseconds:g} us is no time of a transfer; at most {MOST_US:g} are read")
    return max(1, round(microseconds * 1000))


def _rows(table: dict[int, int], place: str) -> Table:
    rows = tuple(sorted((size, ns) for size, ns in table.items() if size > 0))
    if not rows:
        raise InvalidInput(f"{place}: no transfer of more than 0 bytes; run nccl-tests with -b 1K -e 1G -f 4, say")
    return rows
