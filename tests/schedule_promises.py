"""What the catalogue promises about its schedules, tried case by case; each returns a line for every failure."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from random import Random

from costmodel.stages.costs import Costs
from simulator.engine import Structure
from simulator.engine.times import Times
from simulator.schedules import SCHEDULES, ScheduleKind, Uniform, build_schedule
from simulator.uniform import share_bytes, uniform_costs
from tests.published_data import folder, rows

TIMES = ((12, 12, 12), (12, 24, 12), (24, 12, 12), (36, 24, 12), (24, 36, 24), (12, 24, 36))
DELAYS = (0, 0, 1, 5, 18, 19)

REFERENCES = {
    # (source, schedule) of the reference table: our name, chunks, group size in p, memory limit in p
    ("torch", "GPipe"): ("gpipe", 1, None, None),
    ("zb-main", "1F1B"): ("1f1b", 1, None, None),
    ("jaxpp", "Eager1F1B"): ("eager-1f1b", 1, None, None),
    ("zb-main", "VPP_v2"): ("interleaved-1f1b", 2, None, None),
    ("zb-main", "VPP_v4"): ("interleaved-1f1b", 4, None, None),
    ("megatron", "Interleaved_v2_N2p"): ("interleaved-1f1b", 2, 2, None),
    ("torch", "LoopedBFS_v2"): ("looped-bfs", 2, None, None),
    ("torch", "LoopedBFS_v4"): ("looped-bfs", 4, None, None),
    ("zb-arxiv", "ZB-H1"): ("zb-h1", 1, None, None),
    ("zb-arxiv", "ZB-H2"): ("zb-h2", 1, None, None),
}
SYNTHESES = {
    ("zb-main", "ZB-1p"): ("zb-auto", 1, None, Fraction(1)),
    ("zb-arxiv", "ZB-1.5p"): ("zb-auto", 1, None, Fraction(3, 2)),
    ("zb-main", "ZB-2p"): ("zb-auto", 1, None, Fraction(2)),
}


def times_of(name: str, costs: Costs, num_microbatches: int, **parameters: int | None) -> Times:
    return Structure(build_schedule(name, costs, num_microbatches, **parameters)).times(costs)  # type: ignore[arg-type]


def closed_form_failures(num_cases: int) -> list[str]:
    """Closed forms of bubble and peak are exact wherever they claim to hold (p <= 16, m <= 64)."""
    return [line for case in islice(_uniform_cases(Random(0)), num_cases) for line in _closed_form_failures(*case)]


def _uniform_cases(rng: Random) -> Iterator[tuple[ScheduleKind, int, int, int, tuple[int, int, int], int]]:
    """Cases for which a form claims to hold, without end."""
    kinds = [kind for kind in SCHEDULES.values() if kind.bubble]
    while True:
        kind, p, m = rng.choice(kinds), rng.randint(1, 16), rng.randint(1, 64)
        v = rng.randint(1, 4) if kind.placement == "loop" else 1
        if rng.random() < 0.3:
            m -= m % p
        times, delay = rng.choice(TIMES), rng.choice(DELAYS)
        uniform = Uniform(p, v, max(m, 1), *map(Fraction, times), Fraction(delay))
        if any(form and form.holds(uniform) for form in (kind.bubble, kind.peak)):
            yield kind, p, v, max(m, 1), times, delay


def _closed_form_failures(
    kind: ScheduleKind, p: int, v: int, m: int, times_ns: tuple[int, int, int], delay_ns: int
) -> Iterator[str]:
    uniform = Uniform(p, v, m, *map(Fraction, times_ns), Fraction(delay_ns))
    times = times_of(kind.name, uniform_costs(p, v, *times_ns, delay_ns), m)
    case = f"{kind.name} p={p} v={v} m={m} {times_ns} c={delay_ns}"
    if kind.bubble and kind.bubble.holds(uniform):
        taken = times.span_ns if kind.bubble_of == "span" else times.step_time_ns
        if taken - m * sum(times_ns) != kind.bubble.value(uniform, 0):
            yield f"{case}: bubble {taken - m * sum(times_ns)}, formula {kind.bubble.value(uniform, 0)}"
    if kind.peak and kind.peak.holds(uniform):
        peaks = [Fraction(peak, share_bytes(v)) for peak in times.peak_memory_bytes]
        if peaks != [kind.peak.value(uniform, rank) for rank in range(p)]:
            yield f"{case}: peaks {list(map(str, peaks))}"


def reference_failures(num_rows: int, kinds: dict[tuple[str, str], tuple[str, int, int | None, Fraction | None]]
                       ) -> list[str]:  # fmt: skip
    """Peers' schedules: makespan and span both equal, or neither higher and one lower, at no more memory."""
    table = [r for r in rows(folder("published", "schedules_reference.csv"))
             if (r["source"], r["schedule"]) in kinds and r["status"] == "ok"]  # fmt: skip
    Random(0).shuffle(table)
    return [line for row in table[:num_rows] if (line := _worse_than(row, *kinds[row["source"], row["schedule"]]))]


def _worse_than(row: dict[str, str], name: str, chunks: int, group: int | None, limit: Fraction | None) -> str | None:
    scale = Fraction(row["scale"]) * 1000
    p, m = int(row["p"]), int(row["m"])
    costs = uniform_costs(p, chunks, *(round(Fraction(row[key]) * scale) for key in ("tF", "tB", "tW", "c")))
    share = share_bytes(chunks)
    # A synthesis gets the memory that the peer took, which may be less than the limit that it was given.
    most = None if limit is None else int(min(limit * p, Fraction(row["peak_half"])) * share)
    times = times_of(name, costs, m, group_size=group and group * p, memory_limit_bytes=most)
    found = (times.step_time_ns, times.span_ns, Fraction(max(times.peak_memory_bytes), share))
    # The table rounds to its printed digits.
    step, span = (Fraction(row[key]) * scale for key in ("makespan", "span"))
    if found[0] > step + 1 or found[1] > span + 1 or found[2] > Fraction(row["peak_half"]):
        return f"{row['source']} {row['schedule']} p={p} m={m} {row['time_set']} c={row['c']}: {found}"
    return None
