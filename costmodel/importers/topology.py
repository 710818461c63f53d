"""``nvidia-smi topo -m`` and Slurm's topology as a cluster file (TOML).

They say what is joined to what, never how fast: bandwidths are those of the catalogue for a named device, else
assumptions by the kind of link, marked so, until ``penstock links`` measures them.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import read_text
from costmodel.importers.nvidia_topology import LEVELS, Matrix, fewest_nvlinks, group_size, read_matrix
from costmodel.importers.slurm_topology import CONF, YAML, read_levels
from costmodel.machines import catalogue
from costmodel.machines.catalogue import CatalogueDevice

GIB = 2**30
_LEVELS_GBS = dict(zip(LEVELS, (22.0, 20.0, 16.0, 14.0, 10.0), strict=True))
"""GB/s assumed between GPUs by what lies between them (PCIe 4 x16)."""
NIC_GBS, NIC_US, HOP_US = 25.0, 10.0, 2.0
"""Assumed: one 200 Gb/s port a GPU, its latency, and what each level of switches adds."""
NVLINK_US, PCIE_US = 6.0, 10.0
HOST_GBS = 240.0
"""Assumed within a host of Slurm's whose devices are not named."""


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

    def to_toml(self, device: str, memory_gib: float, catalogue_id: str = "") -> str:
        """Return the cluster file's text."""
        name = json.dumps(device)
        lines = ['format = "penstock-cluster"', "version = 1", "", "[[device]]", f"name = {name}"]
        lines += [f"catalogue = {json.dumps(catalogue_id)}"] * bool(catalogue_id)
        lines += [f"memory_gib = {memory_gib!r}", "", "[[host]]", f"count = {self.num_hosts}", f"device = {name}"]
        lines += [f"devices = {self.devices_per_host}"]
        for link in self.links:
            lines += ["", "[[link]]", f'name = "{link.name}"', f"group = {link.group}"]
            lines += [f"bandwidth_gbs = {link.bandwidth_gbs:g}  # assumed; penstock links measures it"]
            lines += [f"latency_us = {link.latency_us}  # assumed"]
        return "\n".join([*lines, ""])


def read_topology(path: str | Path, devices_per_host: int = 8, device: CatalogueDevice | None = None) -> Topology:
    """Read either kind of file, told apart by what is in it.

    Parameters
    ----------
    devices_per_host : int
        For Slurm's, which knows no devices.
    device : CatalogueDevice, optional
        Whose rates count.

    Raises
    ------
    InvalidInput
        When it is neither, or breaks a rule of its kind; names the line.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", read_text(Path(path)))  # nvidia-smi underlines its header
    if re.search(r"^GPU0\s", text, re.MULTILINE):
        return _nvidia(read_matrix(text, str(path)), device)
    if CONF.search(text) or YAML.search(text):
        return _slurm(read_levels(text, str(path)), devices_per_host, device)
    raise InvalidInput(
        f"{path}: neither `nvidia-smi topo -m` (lines GPU0, GPU1, ...) nor Slurm's topology.conf (lines SwitchName=... "
        "or BlockName=...) or topology.yaml (- topology: ...)"
    )


def _nvidia(matrix: Matrix, device: CatalogueDevice | None) -> Topology:
    if len(matrix) == 1:
        return Topology(1, 1, ())
    links: list[Link] = []
    notes: list[str] = []
    allowed: set[str] = set()
    for level in ("NV", *LEVELS):
        allowed.add(level)
        size = group_size(matrix, allowed)
        if size == 0:
            notes.append(f"{level} joins uneven groups of GPUs; the next wider link is used for them")
        elif size > 1 and (not links or size > links[-1].group):
            name, us = ("nvlink", NVLINK_US) if level == "NV" else (level.lower(), PCIE_US)
            links.append(Link(name, size, _gbs(level, matrix, device), us))
    links[-1] = Link(links[-1].name, 0, links[-1].bandwidth_gbs, links[-1].latency_us)
    return Topology(1, len(matrix), tuple(links), tuple(notes))


def _gbs(level: str, matrix: Matrix, device: CatalogueDevice | None) -> float:
    """Return the rate of a kind of link: of the named device, else of the slowest that the kind may be."""
    if level == "NV":
        known = [link.gbs for link in catalogue.links() if link.id.startswith("nvlink") and link.kind == "nvlink"]
        own = catalogue.link(device.scaleup_link).gbs if device and device.scaleup_link else min(known)
        return own * fewest_nvlinks(matrix)
    fastest, assumed = catalogue.link("pcie5").gbs, catalogue.link("pcie4").gbs
    return _LEVELS_GBS[level] * (min(device.pcie_gbs, fastest) / assumed if device else 1)


def _slurm(levels: list[list[list[str]]], devices_per_host: int, device: CatalogueDevice | None) -> Topology:
    count = len({host for group in levels[0] for host in group})
    inner_gbs, nic_gbs = HOST_GBS, NIC_GBS
    if device:
        inner_gbs = device.scaleup_gbs or device.pcie_gbs
        nic_gbs = device.host_network_gbs / devices_per_host or NIC_GBS
    links, notes = [Link("host", devices_per_host, inner_gbs, NVLINK_US)], []
    for i, groups in enumerate(levels):
        sizes = {len(group) for group in groups}
        if len(sizes) > 1:
            notes.append(f"level {i} of the switches joins {sorted(sizes)} hosts; only equal groups can be kept")
        elif (size := sizes.pop()) < count:
            links.append(Link(f"switch{i}", size * devices_per_host, nic_gbs, NIC_US + HOP_US * i))
    links.append(Link("network", 0, nic_gbs, NIC_US + HOP_US * (len(levels) - 1)))
    return Topology(count, devices_per_host, tuple(links if devices_per_host > 1 else links[1:]), tuple(notes))
