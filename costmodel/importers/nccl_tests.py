"""Output of nccl-tests and rccl-tests, text or JSON, as measured links.

Out-of-place times count (in-place ones where there are no others). Sizes are those of the whole buffer, as
nccl-tests and `penstock links` both give them. Leaves out broadcast, reduce, gather and scatter.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import read_json, read_text
from costmodel.importers import nccl_json, nccl_text
from costmodel.importers.nccl_runs import NcclRun, measured
from costmodel.machines.link_fit import fit_ranges
from costmodel.machines.links import LinkClass, Links


def read_nccl_runs(paths: Sequence[str | Path]) -> list[NcclRun]:
    """Read the runs of some files, one a kind of transfers.

    Raises
    ------
    InvalidInput
        When a file is no such output, two runs are of one kind, or their ranks differ; names the line.
    """
    runs = [run for path in paths for run in _read(Path(path))]
    first: dict[str, NcclRun] = {}
    for run in runs:
        other = first.setdefault(run.kind, run)
        if other is not run:
            raise InvalidInput(
                f"{run.place}: a second measurement of {run.kind}, as in {other.place}; give one run of each kind"
            )
        if run.num_ranks != runs[0].num_ranks:
            raise InvalidInput(
                f"{run.place}: {run.num_ranks} ranks, and {runs[0].place} has {runs[0].num_ranks}; give runs of one job"
            )
    return runs


def links_of(runs: Sequence[NcclRun]) -> Links:
    """Return the links that runs measured."""
    classes = {run.kind: LinkClass(fit_ranges(run.table), run.table) for run in runs}
    return Links("nccl", runs[0].device, runs[0].num_ranks, classes)


def _read(path: Path) -> list[NcclRun]:
    text = read_text(path)
    if path.name.endswith((".json", ".json.gz")) or re.match(r"\s*(\{|\[\s*[{\]])", text):
        found = nccl_json.read_runs(read_json(path))
    else:
        found = nccl_text.read_runs(text, str(path))
    if len(found) == 1 and found[0].program is None and (named := nccl_text.PROGRAM.search(path.name)):
        found = [replace(found[0], program=named[1])]
    return [measured(run) for run in found]
