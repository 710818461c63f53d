"""Estimated against measured times of GPT operators on an A10G and an L4, and of whole steps on A100s.

    python -m benchmarks.roofline [--json]

Operators: the profiles in ``published/aceso_a10g_l4.tar.gz`` (read where it lies; PENSTOCK_DATA names the folder), one
device each, fp16; from tensor groups only what holds no communication. Stages: forwards of inner stages in whole runs
of the same machines. Steps: rows of vTrain's single-node table with neither tensor nor data parallelism (hidden width x
micro-batch size), transfers left out, and one layer of Korthikanti et al. (2022), Table 4, whose all-reduces are added
at the effective rate of the catalogue. Errors are medians, because some profiles hold a first call. The A10G's
operators set the tables; of the L4 only the ends of its achievable share of peak were, its central share is that of any
device. ``a10g to l4`` is the A10G's measured time, times the ratio of both estimates, against the L4's.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.roofline.pairs import Pair, operator_pairs, scaled, stage_pairs, step_pairs
from benchmarks.support.published_data import published_data


@dataclass(frozen=True, slots=True)
class Row:
    """Errors of many pairs: medians, in per cent, and the share of times inside [low, high]."""

    device: str
    kind: str
    part: str
    count: int
    bias_percent: float
    error_percent: float
    inside_percent: float


def rows(pairs: list[Pair]) -> list[Row]:
    """Return one row a device, kind and part, and one over all kinds where there are several."""
    groups = defaultdict(list)
    for pair in pairs:
        groups[pair.device, pair.kind, pair.part].append(pair)
        groups[pair.device, "all", pair.part].append(pair)
    several = len({pair.kind for pair in pairs}) > 1
    return [_row(key, group) for key, group in sorted(groups.items()) if several or key[1] != "all"]


def _row(key: tuple[str, str, str], group: list[Pair]) -> Row:
    errors = [100 * (pair.found.central_ns / pair.measured_ns - 1) for pair in group]
    inside = sum(pair.found.low_ns <= pair.measured_ns <= pair.found.high_ns for pair in group)
    return Row(*key, len(group), median(errors), median(map(abs, errors)), 100 * inside / len(group))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.roofline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    pairs = operator_pairs(published_data("aceso_a10g_l4.tar.gz"))
    table = rows(pairs) + rows(scaled(pairs)) + rows(stage_pairs(published_data())) + rows(step_pairs(published_data()))
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in table]}))
        return
    print(f"{'device':<11} {'kind':<24} {'part':<9} {'count':>5} {'bias %':>8} {'error %':>8} {'inside %':>8}")
    for row in table:
        print(
            f"{row.device:<11} {row.kind:<24} {row.part:<9} {row.count:>5} {row.bias_percent:>+8.1f} "
            f"{row.error_percent:>8.1f} {row.inside_percent:>8.0f}"
        )


if __name__ == "__main__":
    main()
