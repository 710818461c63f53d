"""What is known of the devices in Aceso's archive beside its tables: one row each in ``devices.csv``.

``sustained`` is by how much longer operators take in a run than in the profile; ``both_ways`` whether messages between
two hosts travel both ways at once. They are fitted where a row's source says so.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from costmodel.errors import UsageError


@dataclass(frozen=True, slots=True)
class AcesoDevice:
    """Catalogue id, devices of a host, sustained over profiled time, both ways, and what a profile says of that."""

    catalogue: str
    devices_per_host: int
    sustained: float
    both_ways: bool
    remarks: tuple[str, ...]


def aceso_device(name: str) -> AcesoDevice:
    """Return a device by its name in the archive.

    Raises
    ------
    UsageError
        For a name that has no row.
    """
    rows = _rows()
    if name not in rows:
        raise UsageError(f"--device {name!r}; Aceso's archive has operators of {', '.join(rows)}: name one of them")
    return rows[name]


@cache
def _rows() -> dict[str, AcesoDevice]:
    text = files("benchmarks.peer_problems.aceso").joinpath("devices.csv").read_text(encoding="utf-8")
    return {
        row["name"]: AcesoDevice(
            row["catalogue"],
            int(row["devices_per_host"]),
            float(row["sustained"]),
            row["both_ways"] == "yes",
            (row["remark"],) if row["remark"] else (),
        )
        for row in csv.DictReader(text.splitlines())
    }
