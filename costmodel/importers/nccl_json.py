"""The JSON of nccl-tests (``-J``) and rccl-tests (``-Z json -x``), as runs.

nccl-tests lists the first rank of each process alone; its configuration says how many GPUs a process has. Environment,
arguments and host names are read over and never stored. rccl-tests writes a list of rows with the numbers of ranks, and
no device. Leaves out what runs must keep (`costmodel.importers.nccl_runs`).
"""

from decimal import Decimal

from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.importers.nccl_runs import NcclOutput, NcclPart, NcclRank, NcclRow, rate, time_us
from costmodel.importers.nccl_text import PROGRAM

RCCL_PROGRAMS = {
    "SendRecv": "sendrecv",
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AlltoAll": "alltoall",
    "AllToAll": "alltoall",
}
"""Names of collectives in rccl-tests' rows."""


def read_runs(root: Node) -> list[NcclOutput]:
    """Return the runs of a document; `InvalidInput` names the place where it is none."""
    return _rccl_runs(root) if isinstance(root.value, list) else [_nccl_run(root)]


def _nccl_run(root: Node) -> NcclOutput:
    members = root.entries()
    for key in ("args", "config", "results", "out_of_bounds"):
        if key not in members:
            root.fail(f"no {key!r}; nccl-tests writes with -J version, args, config, results and out_of_bounds")
    arguments = members["args"].texts()
    named = PROGRAM.search(arguments[0]) if arguments else None
    ranks, num_ranks = _ranks(members["config"])
    rows = tuple(map(_nccl_row, members["results"].items()))
    count = _needed(members["out_of_bounds"], "count")
    return NcclOutput(
        named[1] if named else None,
        root.file,
        ranks,
        num_ranks,
        rows,
        count.integer(),
        _place(members["out_of_bounds"]),
    )


def _ranks(config: Node) -> tuple[tuple[NcclRank, ...], int]:
    """Return the ranks that are listed, and how many there are: of a process with several GPUs the first is listed."""
    fields = config.entries()
    each = 1
    for key in ("nthreads", "ngpus"):
        each *= fields[key].integer(1, 1 << 20) if key in fields else 1
    devices = fields["devices"].items() if "devices" in fields else []
    found = []
    for place, node in enumerate(devices):
        own = node.entries()
        number = own["rank"].integer() if "rank" in own else place
        group = own["group"].integer() if "group" in own else 0
        found.append(NcclRank(number, group, _needed(node, "device_info").text().strip() or "cuda", _place(node)))
    numbers = [rank.number for rank in found]
    if not found:
        config.fail("no devices; they say how many ranks took part")
    if numbers == [each * i for i in range(len(numbers))]:
        return tuple(found), each * len(numbers)
    return tuple(found), len(numbers)


def _nccl_row(node: Node) -> NcclRow:
    fields = node.entries()
    halves = [fields[key] for key in ("out_of_place", "in_place") if key in fields and fields[key].value is not None]
    if "size" not in fields or not halves:
        node.fail("each result has size, and out_of_place or in_place")
    kind = tuple(fields[key].text().strip() if key in fields else "" for key in ("type", "redop", "root"))
    return NcclRow(fields["size"].integer(), (kind[0], kind[1], kind[2]), tuple(map(_part, halves)), _place(node))


def _part(node: Node) -> NcclPart:
    fields = node.entries()
    if "time" not in fields:
        node.fail("each has time in microseconds (run without -C)")
    wrong = fields.get("nwrong")
    num_wrong = 0.0 if wrong is None or wrong.value is None else wrong.number()
    rates = [_rate(fields[key]) if key in fields else None for key in ("alg_bw", "bus_bw")]
    return NcclPart(time_us(fields["time"].number(), _place(node)), rates[0], rates[1], num_wrong)


def _rccl_runs(root: Node) -> list[NcclOutput]:
    """Return the runs of a list of rows: one a name and a number of ranks, with the out-of-place row first."""
    found: dict[tuple[str, int], dict[tuple[int, int, tuple[str, str, str]], list[tuple[int, NcclPart, str]]]] = {}
    for node in root.items():
        fields = node.entries()
        name, num_ranks = _needed(node, "name").text(), _needed(node, "ranks").integer(1)
        kind = (_needed(node, "type").text(), fields["redop"].text() if "redop" in fields else "", "")
        cycle = fields["numCycle"].integer() if "numCycle" in fields else 0
        key = (cycle, _needed(node, "size").integer(), kind)
        row = found.setdefault((name, num_ranks), {}).setdefault(key, [])
        row.append((_needed(node, "inPlace").integer(0, 1), _rccl_part(node), _place(node)))
    runs = []
    for (name, num_ranks), rows in found.items():
        placed = []
        for (_, size, kind), halves in rows.items():
            if len({half[0] for half in halves}) < len(halves):
                raise InvalidInput(f"{halves[-1][2]}: {size} bytes again, as in {halves[0][2]}; give one run")
            placed.append(NcclRow(size, kind, tuple(half[1] for half in sorted(halves, key=_in_place)), halves[0][2]))
        ranks = (NcclRank(0, 0, "cuda", root.file),)
        program = RCCL_PROGRAMS.get(name, name.lower())
        runs.append(NcclOutput(program, root.file, ranks, num_ranks, tuple(placed), 0, root.file))
    if not runs:
        root.fail("no rows; rccl-tests writes one a size and type")
    return runs


def _in_place(half: tuple[int, NcclPart, str]) -> int:
    return half[0]


def _rccl_part(node: Node) -> NcclPart:
    fields = node.entries()
    wrong = fields["wrong"].value if "wrong" in fields else "N/A"
    text = str(wrong)
    if text not in ("N/A", "") and not text.replace(".", "", 1).isdigit():
        node.fail("wrong is a number or N/A")
    rates = [_rate(fields[key]) if key in fields else None for key in ("algBw", "busBw")]
    num_wrong = 0.0 if text in ("N/A", "") else float(text)
    return NcclPart(time_us(_needed(node, "time").number(), _place(node)), rates[0], rates[1], num_wrong)


def _needed(node: Node, key: str) -> Node:
    found = node.entries()
    if key not in found:
        node.fail(f"no {key!r}, which nccl-tests writes with -J, and rccl-tests with -Z json")
    return found[key]


def _rate(node: Node) -> Decimal:
    return rate(repr(node.number()), _place(node))


def _place(node: Node) -> str:
    return f"{node.file}: {node.pointer or '/'}"
