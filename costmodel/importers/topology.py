"""``nvidia-smi topo -m`` and Slurm's topology as a cluster file (TOML).

They say what is joined to what, never how fast: bandwidths and latencies written here are assumptions by
the kind of link, marked so, until ``penstock links`` measures them. Leaves out NICs' places and rails.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import InvalidInput

NVLINK_GBS = 20.0
"""Effective, one direction, a link: A100 240 of 12, H100 370.8 of 18 (measured; NVLink 5 has twice that)."""

_LEVELS = {"PIX": 22.0, "PXB": 20.0, "PHB": 16.0, "NODE": 14.0, "SYS": 10.0}
"""GB/s assumed between GPUs by what lies between them, nearest first (PCIe 4 x16)."""

NIC_GBS, NIC_US, HOP_US = 25.0, 10.0, 2.0
"""Assumed: one 200 Gb/s port a GPU, its latency, and what each level of switches adds."""

MOST_NAMES = 1_000_000
"""Names that one range of Slurm's may represent; more is a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the cluster file; `group` 0 joins all devices."""

    name: str
    group: int
    bandwidth_gbs: float
    latency_us: float


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts alike and the links between their devices, innermost first; `notes` say what was not kept."""

    num_hosts: int
    devices_per_host: int
    links: tuple[Link, ...]
    notes: tuple[str, ...] = ()

    def to_toml(self, device: str, memory_gib: float) -> str:
        """Return the cluster file's text."""
        lines = ['format = "penstock-cluster"', "version = 1", "", "[[device]]", f'name = "{device}"']
        lines += [f"memory_gib = {memory_gib}", "", "[[host]]", f"count = {self.num_hosts}", f'device = "{device}"']
        lines += [f"devices = {self.devices_per_host}"]
        for link in self.links:
            lines += ["", "[[link]]", f'name = "{link.name}"', f"group = {link.group}"]
            lines += [f"bandwidth_gbs = {link.bandwidth_gbs}  # assumed; penstock links measures it"]
            lines += [f"latency_us = {link.latency_us}  # assumed"]
        return "\n".join([*lines, ""])


def read_topology(path: str | Path, devices_per_host: int = 8) -> Topology:
    """Read either kind of file, told apart by what is in it.

    Parameters
    ----------
    devices_per_host : int
        For Slurm's, which knows no devices.

    Raises
    ------
    InvalidInput
        When it is neither, or its groups are uneven.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from None
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # nvidia-smi underlines its header
    if re.search(r"^\s*(SwitchName|BlockName)=", text, re.MULTILINE):
        return _slurm(text, devices_per_host, str(path))
    if re.search(r"^GPU0\s", text, re.MULTILINE):
        return _nvidia(text, str(path))
    raise InvalidInput(
        f"{path}: neither `nvidia-smi topo -m` (lines GPU0, GPU1, ...) nor Slurm's topology (lines SwitchName=... or "
        "BlockName=...)"
    )


def _nvidia(text: str, place: str) -> Topology:
    rows = [line.split() for line in text.splitlines() if re.match(r"GPU\d+\s", line)]
    count = len(rows)
    header = next((line for line in text.splitlines() if re.match(r"\s+GPU0\s", line)), "")
    columns = len(re.findall(r"\bGPU\d+", header))
    if columns > count:
        raise InvalidInput(f"{place}: {columns} GPUs in the header, rows for {count}; was the file cut off?")
    matrix = [row[1 : 1 + count] for row in rows]
    for i, row in enumerate(matrix):
        wrong = [
            cell
            for j, cell in enumerate(row)
            if not re.fullmatch("X" if i == j else r"NV\d+|" + "|".join(_LEVELS), cell)
        ]
        if len(row) != count or wrong:
            raise InvalidInput(
                f"{place}: the row of GPU{i} has {' '.join(row)}; X, NV#, {', '.join(_LEVELS)} are known"
            )
    if count == 1:
        return Topology(1, 1, ())
    links: list[Link] = []
    notes: list[str] = []
    allowed: set[str] = set()
    for level in ("NV", *_LEVELS):
        allowed.add(level)
        size = _group(matrix, allowed)
        if size == 0:
            notes.append(f"{level} joins uneven groups of GPUs; the next wider link is used for them")
        elif size > 1 and (not links or size > links[-1].group):
            links.append(Link("nvlink" if level == "NV" else level.lower(), size, *_speed(level, matrix)))
    links[-1] = Link(links[-1].name, 0, links[-1].bandwidth_gbs, links[-1].latency_us)
    return Topology(1, count, tuple(links), tuple(notes))


def _speed(level: str, matrix: list[list[str]]) -> tuple[float, float]:
    if level != "NV":
        return _LEVELS[level], 10.0
    return NVLINK_GBS * min(int(c[2:]) for row in matrix for c in row if c.startswith("NV")), 6.0


def _group(matrix: list[list[str]], allowed: set[str]) -> int:
    """Return the size of the equal groups of consecutive GPUs that these links join pairwise; 0 if uneven."""

    def joined(i: int, j: int) -> bool:
        return i == j or matrix[i][j].rstrip("0123456789") in allowed

    sets = [{j for j in range(len(matrix)) if joined(i, j)} for i in range(len(matrix))]
    size = len(sets[0])
    expected = [set(range(i // size * size, i // size * size + size)) for i in range(len(matrix))]
    return size if sets == expected else 0


def _slurm(text: str, devices_per_host: int, place: str) -> Topology:
    switches: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        fields = dict(part.split("=", 1) for part in line.split("#")[0].split() if "=" in part)
        name = fields.get("SwitchName") or fields.get("BlockName")
        if name:
            switches[name] = fields
    hosts = {name: expand(f["Nodes"]) for name, f in switches.items() if f.get("Nodes") and not f.get("Switches")}
    levels = [list(hosts.values())]
    upper = {n: expand(f["Switches"]) for n, f in switches.items() if f.get("Switches")}
    while upper:
        ready = {
            n: [h for c in below for h in hosts[c]] for n, below in upper.items() if all(c in hosts for c in below)
        }
        if not ready:
            raise InvalidInput(
                f"{place}: the switch {next(iter(upper))!r} names switches that the file does not define"
            )
        hosts |= ready
        levels.append(list(ready.values()))
        upper = {name: below for name, below in upper.items() if name not in ready}
    return _slurm_links(levels, devices_per_host, place)


def _slurm_links(levels: list[list[list[str]]], devices_per_host: int, place: str) -> Topology:
    count = len({host for group in levels[0] for host in group})
    if not count:
        raise InvalidInput(f"{place}: no Nodes; leaf switches (or blocks) must name theirs")
    links, notes = [Link("host", devices_per_host, NVLINK_GBS * 12, 6.0)], []
    for i, groups in enumerate(levels):
        sizes = {len(group) for group in groups}
        if len(sizes) > 1:
            notes.append(f"level {i} of the switches joins {sorted(sizes)} hosts; only equal groups can be kept")
        elif (size := sizes.pop()) < count:
            links.append(Link(f"switch{i}", size * devices_per_host, NIC_GBS, NIC_US + HOP_US * i))
    links.append(Link("network", 0, NIC_GBS, NIC_US + HOP_US * (len(levels) - 1)))
    return Topology(count, devices_per_host, tuple(links if devices_per_host > 1 else links[1:]), tuple(notes))


def expand(names: str) -> list[str]:
    """Expand Slurm's lists of names: ``a[0-2,5],b`` is a0, a1, a2, a5, b.

    Raises
    ------
    InvalidInput
        When brackets are left open or a range falls or is beyond `MOST_NAMES`.
    """
    found: list[str] = []
    if re.search(r"\[[^\]]*(\[|$)", names):
        raise InvalidInput(f"the names {names!r} leave a bracket open; Slurm writes them like n[1-4,7]")
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", names):
        stem, _, inner = part.partition("[")
        for span in inner.rstrip("]").split(",") if inner else [""]:
            first, _, last = span.partition("-")
            if not span:
                found.append(stem)
                continue
            is_range = re.fullmatch(r"[0-9]{1,18}(-[0-9]{1,18})?", span)
            if not is_range or not 0 <= int(last or first) - int(first) < MOST_NAMES:
                raise InvalidInput(f"the names {names!r}: {span!r} is no rising range of at most {MOST_NAMES} numbers")
            numbers = range(int(first), int(last or first) + 1)
            found += [f"{stem}{number:0{len(first)}d}" for number in numbers]
    return found
