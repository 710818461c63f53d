"""What the catalogue promises about its schedules, tried case by case; each returns a line for every failure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from random import Random

from costmodel.stages.costs import Costs
from simulator.engine import Structure
from simulator.engine.times import Times
from simulator.schedules import SCHEDULES, ScheduleKind, Uniform, build_schedule
from simulator.uniform import share_bytes, uniform_costs
from simulator.validation import validate_schedule
from tests.properties.engines_agree import disagreement
from tests.support.published_data import folder, rows
from tests.support.random_cases import Case

TIMES = ((12, 12, 12), (12, 24, 12), (24, 12, 12), (36, 24, 12), (24, 36, 24), (12, 24, 36))
DELAYS = (0, 0, 1, 5, 18, 19)


@dataclass(frozen=True)
class Ours:
    """What stands against a schedule of the reference table; group size and memory limit are in p."""

    name: str
    chunks: int = 1
    group: Fraction | None = None
    limit: Fraction | None = None
    slices: int = 1


REFERENCES = {
    ("torch", "GPipe"): Ours("gpipe"),
    ("zb-main", "1F1B"): Ours("1f1b"),
    ("jaxpp", "Eager1F1B"): Ours("eager-1f1b"),
    ("zb-main", "VPP_v2"): Ours("interleaved-1f1b", 2),
    ("zb-main", "VPP_v4"): Ours("interleaved-1f1b", 4),
    ("megatron", "Interleaved_v2_N2p"): Ours("interleaved-1f1b", 2, Fraction(2)),
    ("torch", "LoopedBFS_v2"): Ours("looped-bfs", 2),
    ("torch", "LoopedBFS_v4"): Ours("looped-bfs", 4),
    ("zb-arxiv", "ZB-H1"): Ours("zb-h1"),
    ("zb-arxiv", "ZB-H2"): Ours("zb-h2"),
    ("torch", "InterleavedZeroBubble_v1"): Ours("interleaved-zb"),
    ("torch", "InterleavedZeroBubble_v2"): Ours("interleaved-zb", 2),
    ("zb-main", "GroupInterleaved_v2_full"): Ours("group-interleaved", 2),
    ("zb-main", "GroupInterleaved_v2_half"): Ours("group-interleaved", 2, Fraction(1, 2)),
    ("zb-main", "GroupInterleaved_v4_half"): Ours("group-interleaved", 4, Fraction(1, 2)),
    ("zb-main", "Seq1F1B_s2"): Ours("seq1f1b", slices=2),
    ("zb-main", "Seq1F1B_s4"): Ours("seq1f1b", slices=4),
    ("dualpipe", "DualPipe"): Ours("dualpipe"),
    ("torch", "DualPipeV"): Ours("dualpipe-v", 2),
    ("chimera", "Chimera"): Ours("chimera"),
}
"""Fixed orders, by (source, schedule) of the reference table."""
SYNTHESES = {
    ("zb-main", "ZB-1p"): Ours("zb-auto", limit=Fraction(1)),
    ("zb-arxiv", "ZB-1.5p"): Ours("zb-auto", limit=Fraction(3, 2)),
    ("zb-main", "ZB-2p"): Ours("zb-auto", limit=Fraction(2)),
    ("zb-main", "ZB-V"): Ours("zb-v", 2),
}
BEHIND = {
    ("zb-main", "V-Half"): (Ours("v-half", 2), Fraction(23, 1000)),
    ("zb-main", "V-Min"): (Ours("v-min", 2), Fraction(3, 1000)),
}
"""Schedules that are behind the peer in some rows, and by what part of the step at most (docs/validation.md)."""


def times_of(name: str, costs: Costs, num_microbatches: int, **parameters: int | None) -> Times:
    return Structure(build_schedule(name, costs, num_microbatches, **parameters)).times(costs)  # type: ignore[arg-type]


def closed_form_failures(num_cases: int) -> list[str]:
    """Closed forms of bubble and peak are exact wherever they claim to hold (p <= 16, m <= 64)."""
    return [line for case in islice(_uniform_cases(Random(0)), num_cases) for line in _closed_form_failures(*case)]


def _uniform_cases(rng: Random) -> Iterator[tuple[ScheduleKind, Uniform]]:
    """Cases for which a form claims to hold, without end."""
    kinds = [kind for kind in SCHEDULES.values() if kind.bubble]
    while True:
        kind, p, m = rng.choice(kinds), rng.randint(1, 16), rng.randint(1, 64)
        v = rng.randint(1, 4) if kind.placement == "loop" else kind.chunks
        p, m = _admitted(kind, p, m)
        if rng.random() < 0.3:
            m -= m % p
        times, delay = rng.choice(TIMES), rng.choice(DELAYS)
        slices = rng.choice((2, 4)) if kind.sliced else 1
        f, i, w = map(Fraction, times)
        uniform = Uniform(p, v, max(m, 1), f, i, w, Fraction(delay), slices=slices)
        if any(form and form.holds(uniform) for form in (kind.bubble, kind.peak)):
            yield kind, uniform


def _admitted(kind: ScheduleKind, p: int, m: int) -> tuple[int, int]:
    """Return ranks and micro-batches that a schedule runs: even ones with two copies, 2 p or more for DualPipe."""
    if kind.placement == "two-way":
        p, m = p + p % 2, m + m % 2
    return p, max(m, 2 * p) if kind.name.startswith("dualpipe") else m


def _closed_form_failures(kind: ScheduleKind, uniform: Uniform) -> Iterator[str]:
    p, v, m, n = uniform.ranks, uniform.chunks, uniform.microbatches, uniform.slices
    four = tuple(map(int, (uniform.forward, uniform.backward_input, uniform.backward_weight, uniform.p2p)))
    costs = uniform_costs(p, v, four[0], four[1], four[2], four[3], placement=kind.placement, slices=n)
    times = times_of(kind.name, costs, m, num_slices=n)
    case = f"{kind.name} p={p} v={v} m={m} n={n} {four}"
    if kind.bubble and kind.bubble.holds(uniform):
        taken = (times.span_ns if kind.bubble_of == "span" else times.step_time_ns) - m * uniform.work
        if taken != kind.bubble.value(uniform, 0):
            yield f"{case}: bubble {taken}, formula {kind.bubble.value(uniform, 0)}"
    if kind.peak and kind.peak.holds(uniform):
        peaks = [Fraction(peak, share_bytes(v, slices=n)) for peak in times.peak_memory_bytes]
        if peaks != [kind.peak.value(uniform, rank) for rank in range(p)]:
            yield f"{case}: peaks {list(map(str, peaks))}"


def reference_failures(
    num_rows: int, kinds: Mapping[tuple[str, str], Ours], within: Fraction = Fraction(0)
) -> list[str]:
    """Peers' schedules: makespan and span both equal, or neither higher and one lower, at no more memory.

    `within` is the part of the step by which a row may be behind all the same.
    """
    table = [r for r in rows(folder("published", "schedules_reference.csv"))
             if (r["source"], r["schedule"]) in kinds and r["status"] == "ok"]  # fmt: skip
    Random(0).shuffle(table)
    return [
        line for row in table[:num_rows] if (line := _worse_than(row, kinds[row["source"], row["schedule"]], within))
    ]


def behind_failures(num_rows: int) -> list[str]:
    """Schedules that are known to be behind are so by no more than what the documents say."""
    return [
        line for key, (ours, within) in BEHIND.items() for line in reference_failures(num_rows, {key: ours}, within)
    ]


def _worse_than(row: dict[str, str], ours: Ours, within: Fraction) -> str | None:
    scale = Fraction(row["scale"]) * 1000
    p, m = int(row["p"]), int(row["m"])
    f, i, w, c = (round(Fraction(row[key]) * scale) for key in ("tF", "tB", "tW", "c"))
    costs = uniform_costs(p, ours.chunks, f, i, w, c, placement=SCHEDULES[ours.name].placement, slices=ours.slices)
    share = share_bytes(ours.chunks, slices=ours.slices)
    # A synthesis gets the memory that the peer took, which may be less than the limit that it was given.
    most = None if ours.limit is None else int(min(ours.limit * p, Fraction(row["peak_half"])) * share)
    group = None if ours.group is None else int(ours.group * p)
    times = times_of(ours.name, costs, m, group_size=group, memory_limit_bytes=most, num_slices=ours.slices)
    found = (times.step_time_ns, times.span_ns, Fraction(max(times.peak_memory_bytes), share))
    # The table rounds to its printed digits.
    step, span = (Fraction(row[key]) * scale * (1 + within) + 1 for key in ("makespan", "span"))
    if found[0] > step or found[1] > span or found[2] > Fraction(row["peak_half"]):
        return f"{row['source']} {row['schedule']} p={p} m={m} {row['time_set']} c={row['c']}: {found}"
    return None


def engine_failures(num_cases: int) -> list[str]:
    """Every schedule passes the validator, and two engines agree on it (p <= 8, m <= 16)."""
    rng, found = Random(0), []
    names = list(SCHEDULES)
    for case in range(num_cases):
        name = names[case % len(names)]
        kind, p, m = SCHEDULES[name], rng.randint(1, 8), rng.randint(1, 16)
        v = rng.randint(1, 3) if kind.placement == "loop" else kind.chunks
        p, m = _admitted(kind, p, m)
        slices, times, delay = rng.choice((1, 3)) if kind.sliced else 1, rng.choice(TIMES), rng.choice(DELAYS)
        costs = uniform_costs(p, v, *times, delay, placement=kind.placement, slices=slices)
        schedule = build_schedule(name, costs, m, num_slices=slices)
        difference = disagreement(Case(schedule, costs, rng.choice(("latency", "blocking")), "independent", ()))
        problems = validate_schedule(schedule)
        if problems or difference:
            found.append(f"{name} p={p} v={v} m={m} n={slices} {times} c={delay}: {problems[:1]} {difference}")
    return found


def memory_limit_failures(num_rows: int) -> list[str]:
    """`zb-v` within a memory limit: the bubble of the span is not above the published one."""
    table = rows(folder("published", "schedules_mem2bubble.csv"))
    Random(0).shuffle(table)
    found = []
    for row in table[:num_rows]:
        p, m, limit = int(row["p"]), int(row["m"]), Fraction(row["k_mem_limit"])
        f, i, w, c = (1000 * int(row[key]) for key in ("tF", "tB", "tW", "c"))
        costs = uniform_costs(p, 2, f, i, w, c, "0.4324", "wave")
        times = times_of("zb-v", costs, m, memory_limit_bytes=int(limit * p * share_bytes(2, "0.4324")))
        if times.bubble_ratio_span > float(row["published_npy"]) + 1e-7:
            found.append(f"p={p} m={m} at {row['k_mem_limit']}: {times.bubble_ratio_span:.6f}, {row['published_npy']}")
    return found
