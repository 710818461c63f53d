"""What `penstock fit` makes of ten rows of a device that no constant was fitted on, judged on the device's other rows.

    python -m benchmarks.left_out [--only b200-sxm-180]

The device's own constants are forgotten first; those of trainers stay. The ten rows lie evenly in their table.
"""

import argparse
from collections.abc import Sequence
from statistics import fmean

from benchmarks.accuracy.tables import read
from benchmarks.support.published_data import published_data
from costmodel.calibration import Calibration, published
from planner.measured.fit_constants import fit
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predictor

NUM_ROWS, MOST = 10, 60
DEVICES = {
    "a100-sxm-80": "validation_vtrain_single.csv",
    "b200-sxm-180": "validation_tables.csv",
    "h100-96-500w": "validation_tables.csv",
    "gb200-nvl72": "megatron_bridge_anchors.csv",
    "gb300-nvl72": "megatron_bridge_anchors.csv",
}


def without(device: str) -> Calibration:
    """Return the published constants but those of a device, and of the trainer that was fitted on it alone."""
    alone = {"a100-sxm-80": "megatron-2022"}.get(device, device)
    return Calibration({name: v for name, v in published().values.items() if device not in name and alone not in name})


def error(jobs: Sequence[MeasuredJob], calibration: Calibration) -> float:
    """Return the mean absolute error of jobs, in per cent."""
    return 100 * fmean(abs(one.error) for one in Predictor(calibration).all(jobs) if not one.why_not)


def main() -> None:
    """Print a line a device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(DEVICES), action="append")
    args = parser.parse_args()
    for device in args.only or DEVICES:
        table = [row.job for row in read(published_data(DEVICES[device]))]
        rows = [job for job in table if isinstance(job, MeasuredJob) and job.device == device]
        jobs = [job for job in rows if job.step_ns][:: max(1, len(rows) // MOST)]
        mine = jobs[:: len(jobs) // NUM_ROWS][:NUM_ROWS]
        others = [job for job in jobs if job not in mine]
        known = without(device)
        found = fit(mine, known, lambda job: job.model)
        before, after = error(others, known), error(others, known.with_values(found.moved))
        moved = ", ".join(f"{name} {value:.3g}" for name, value in found.moved.items())
        print(
            f"{device}: {len(others)} other rows, {before:.1f} -> {after:.1f} %; {moved or 'nothing moved'}", flush=True
        )


if __name__ == "__main__":
    main()
