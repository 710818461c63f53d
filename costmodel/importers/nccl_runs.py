"""One run of an nccl-tests or rccl-tests program, and the rules by which it becomes a table of times.

A run is a header, ranks 0 to n - 1 once each, rows, and a footer. Of several operators and types the gradient's counts,
a sum of floats, and the others are named. A bus bandwidth that is not the algorithm's times the program's factor is of
another program or number of ranks. Leaves out how runs are written (`costmodel.importers.nccl_text`, ``nccl_json``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from costmodel.errors import InvalidInput
from costmodel.machines.link_fit import Table

MOST_US = 1e12
"""Of a time, eleven days."""
PROGRAMS = {
    "sendrecv": "p2p",
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
"""Programs that are read, and the class of transfers that each measures."""
OPERATORS = ("sum", "none")
TYPES = ("float", "bfloat16", "half")
"""What gradients are summed in, the usual first; programs that sum nothing name no operator."""


@dataclass(frozen=True, slots=True)
class NcclRank:
    """A rank as a run names it; `group` is not 0 where ranks were split into several communicators."""

    number: int
    group: int
    device: str
    place: str


@dataclass(frozen=True, slots=True)
class NcclPart:
    """The out-of-place or in-place half of a row; rates are None where they are not told, GB/s."""

    time_us: float
    algorithm_gbs: Decimal | None
    bus_gbs: Decimal | None
    num_wrong: float


@dataclass(frozen=True, slots=True)
class NcclRow:
    """The transfers of one size; `kind` is type, operator and root."""

    size_bytes: int
    kind: tuple[str, str, str]
    parts: tuple[NcclPart, ...]
    place: str


@dataclass(frozen=True, slots=True)
class NcclOutput:
    """What one program printed; `num_ranks` counts ranks that the tool does not list one by one."""

    program: str | None
    place: str
    ranks: tuple[NcclRank, ...]
    num_ranks: int
    rows: tuple[NcclRow, ...]
    num_wrong: int
    wrong_place: str


@dataclass(frozen=True, slots=True)
class NcclRun:
    """A run that keeps all rules: class of transfers, GPU, number of ranks, the table (bytes, ns), what is left out."""

    kind: str
    device: str
    num_ranks: int
    table: Table
    place: str
    left_out: tuple[str, ...] = ()


def measured(run: NcclOutput) -> NcclRun:
    """Return the times of a run.

    Raises
    ------
    InvalidInput
        Names the line that breaks a rule.
    """
    if run.program not in PROGRAMS:
        found = "no nccl-tests program is named" if run.program is None else f"the program is {run.program}_perf"
        raise InvalidInput(
            f"{run.place}: {found}; read are {', '.join(f'{name}_perf' for name in PROGRAMS)} (named in the output, or "
            "by the file's name where it holds one run)"
        )
    _check_ranks(run)
    if run.num_wrong:
        raise InvalidInput(f"{run.wrong_place}: {run.num_wrong} values out of bounds: the results are wrong; run again")
    rows: dict[tuple[str, str, str], dict[int, NcclRow]] = {}
    for row in run.rows:
        _check_row(row, run.program, run.num_ranks)
        other = rows.setdefault(row.kind, {}).setdefault(row.size_bytes, row)
        if other is not row:
            raise InvalidInput(
                f"{row.place}: {row.size_bytes} bytes of {_said(row.kind)} again, as in {other.place}; give one "
                "run, of one cycle"
            )
    chosen, *others = sorted(rows, key=_preference) or [("", "", "")]
    table = tuple(sorted((size, _ns(row.parts[0].time_us)) for size, row in rows.get(chosen, {}).items() if size))
    if not table:
        raise InvalidInput(
            f"{run.place}: no row of times: no transfer of more than 0 bytes; run nccl-tests with -b 1K -e 1G -f 4, say"
        )
    left_out = tuple(map(_said, others))
    return NcclRun(PROGRAMS[run.program], run.ranks[0].device, run.num_ranks, table, run.place, left_out)


def _check_ranks(run: NcclOutput) -> None:
    seen: dict[int, NcclRank] = {}
    for rank in run.ranks:
        if rank.group:
            raise InvalidInput(
                f"{rank.place}: rank {rank.number} is of group {rank.group}: the ranks were split into several "
                "communicators, of which the times tell one alone; run without NCCL_TESTS_SPLIT"
            )
        if rank.number in seen:
            raise InvalidInput(
                f"{rank.place}: rank {rank.number} again, as in {seen[rank.number].place}: outputs of several runs, or "
                "of processes that know nothing of each other (nccl-tests built without MPI); give one run"
            )
        seen[rank.number] = rank
    if seen and max(seen) >= run.num_ranks:
        missing = next(number for number in range(run.num_ranks) if number not in seen)
        raise InvalidInput(f"{run.place}: rank {missing} is missing; keep nccl-tests' whole output")
    if run.num_ranks < 2:
        raise InvalidInput(
            f"{run.place}: {run.num_ranks or 'no'} rank takes part, and transfers need two; keep the lines '# Rank 0 "
            "... device 0 [...]', and under mpirun use nccl-tests built with MPI=1"
        )


def _check_row(row: NcclRow, program: str, num_ranks: int) -> None:
    """Refuse rows of wrong results, and rates that are not of this program on these ranks."""
    factor = {"sendrecv": Decimal(1), "all_reduce": Decimal(2 * (num_ranks - 1)) / num_ranks}.get(
        program, Decimal(num_ranks - 1) / num_ranks
    )
    for part in row.parts:
        if part.num_wrong:
            raise InvalidInput(f"{row.place}: {part.num_wrong:g} values are wrong; run again, on a sound machine")
        if part.algorithm_gbs is None or part.bus_gbs is None:
            continue
        rounding = _half_unit(part.bus_gbs) + factor * _half_unit(part.algorithm_gbs)
        if abs(part.bus_gbs - factor * part.algorithm_gbs) > rounding:
            raise InvalidInput(
                f"{row.place}: a bus bandwidth of {part.bus_gbs} GB/s, and {program}_perf on {num_ranks} ranks has "
                f"{factor:.4g} times the algorithm's {part.algorithm_gbs}; this is of another program, or of another "
                "number of ranks"
            )


def _half_unit(value: Decimal) -> Decimal:
    """Return by how much a printed number may be rounded."""
    exponent = value.as_tuple().exponent
    return Decimal("0.5").scaleb(exponent if isinstance(exponent, int) else 0)


def _preference(kind: tuple[str, str, str]) -> tuple[int, int]:
    def place(name: str, names: Sequence[str]) -> int:
        return names.index(name) if name in names else len(names)

    return place(kind[1], OPERATORS), place(kind[0], TYPES)


def _said(kind: tuple[str, str, str]) -> str:
    type_name, operator, root = kind
    of = "" if operator in ("", "none") else f"{operator} of "
    return f"{of}{type_name}" + ("" if root in ("", "-1") else f" from root {root}")


def _ns(microseconds: float) -> int:
    return max(1, round(microseconds * 1000))


def time_us(value: float, place: str) -> float:
    """Return a time that is one.

    Raises
    ------
    InvalidInput
        For a negative or endless one.
    """
    if not 0 < value <= MOST_US:
        raise InvalidInput(
            f"{place}: {value:g} us is no time of a transfer; more than 0 and at most {MOST_US:g} are read"
        )
    return value


def rate(text: str, place: str) -> Decimal:
    """Return a rate with as many digits as are printed."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    if not (value.is_finite() and 0 <= value <= Decimal(MOST_US)):
        raise InvalidInput(f"{place}: {text[:40]!r} is no bandwidth in GB/s")
    return value
