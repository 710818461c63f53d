"""What is known of devices and links that nobody measured here: data files, each row with source and confidence.

``devices.csv``: memory, dense peak rates by precision, links of a device. ``links.csv``: one link each, effective and
specified. ``latencies.csv``: NCCL's own constants. A user's own device stands in a file (`device_file`). Leaves out
prices, clocks and power; effective rates are what NCCL assumes, which published measurements of rings confirm within
a tenth.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.catalogue.device_file import SUFFIX, device_row

MIB = 2**20
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4")
NARROW = ("fp8", "nvfp4")
"""Precisions of matrix products alone."""


@dataclass(frozen=True, slots=True)
class CatalogueLink:
    """One link, one direction: effective and specified rate (10^9 bytes a second).

    `kind` is ``nvlink`` (scale-up), ``pcie`` (within a host, and to it) or ``network``.
    """

    id: str
    name: str
    kind: str
    gbs: float
    spec_gbs: float
    confidence: str
    notes: str
    source: str


@dataclass(frozen=True, slots=True)
class CatalogueDevice:
    """One device type; 0 where a rate is not known, and a matmul fraction is 0 where nobody measured it.

    Attributes
    ----------
    memory_gib_label, memory_bytes : float, int
        What is printed on the device, and what its driver gives in all.
    memory_gbs : float
        Memory bandwidth, 10^9 bytes a second.
    tflops : mapping of str to float
        Peak of the matrix units (fp32: of the vector units) by precision, 10^12 FLOP a second; what is not there the
        device does not have.
    figures : str
        ``dense`` or ``sparse``: what the peaks are.
    scaleup_link, scaleup_links, scaleup_gbs, scaleup_domain : str, int, float, int
        Catalogue id and number of links to its peers, their effective rate together (one direction), and how many
        devices they join.
    pair_gbs : float
        Rate between two devices where it is less than `scaleup_gbs`, else 0.
    switch_share : float
        Part of `scaleup_gbs` at which the switch between devices sums what they send (NVLS); 0 where it cannot.
    pcie_link : str
        Catalogue id of the link to the host.
    host_network_gbs : float
        Network of a typical host with such devices, all NICs together, one direction.
    host_devices : int
        Devices of a typical host; a scale-up domain may join several hosts.
    peer_to_peer : bool
        Whether devices read each other's memory over PCIe; else what they send goes through that of their host.
    matmul_fraction, fp8_matmul_fraction : float
        Largest share of the peak that a matmul was measured at, 16 and 8 bits.
    overlap_slowdown : float
        By what compute slows while communication runs at the same time.
    confidence : str
        ``high``, ``medium`` or ``low``.
    """

    id: str
    name: str
    vendor: str
    memory_gib_label: float
    memory_bytes: int
    memory_source: str
    memory_gbs: float
    tflops: Mapping[str, float] = field(hash=False)
    figures: str
    scaleup_link: str
    scaleup_links: int
    scaleup_gbs: float
    scaleup_domain: int
    pair_gbs: float
    switch_share: float
    pcie_link: str
    host_network_gbs: float
    host_devices: int
    peer_to_peer: bool
    matmul_fraction: float
    fp8_matmul_fraction: float
    overlap_slowdown: float
    overlap_source: str
    confidence: str
    notes: str
    source: str

    @property
    def pcie_gbs(self) -> float:
        """Effective rate of the link to the host, one direction, 10^9 bytes a second."""
        return link(self.pcie_link).gbs


@dataclass(frozen=True, slots=True)
class Latency:
    """NCCL's latency of a kind of hop (or of the launch), microseconds by protocol."""

    kind: str
    algorithm: str
    ll_us: float
    ll128_us: float
    simple_us: float
    confidence: str
    source: str


@cache
def device(device_id: str) -> CatalogueDevice:
    """Return the device of this catalogue id, or of a device file (a path that ends in ``.toml``).

    Raises
    ------
    InvalidInput
        When there is none, naming the nearest ones, or the file cannot be read.
    """
    if device_id.endswith(SUFFIX):
        return _device_of(device_id)
    known = {row.id: row for row in devices()}
    return known[_known(device_id, tuple(known), "device")]


def find_device(name: str) -> CatalogueDevice | None:
    """Return the device of this id, or the only one whose id begins so (``b200``); None where there is none such."""
    found = [row for row in devices() if row.id == name] or [row for row in devices() if row.id.startswith(f"{name}-")]
    return found[0] if len(found) == 1 else None


@cache
def link(link_id: str) -> CatalogueLink:
    """Return the link of this catalogue id; `InvalidInput` names the nearest ones when there is none."""
    known = {row.id: row for row in links()}
    return known[_known(link_id, tuple(known), "link")]


@cache
def devices() -> tuple[CatalogueDevice, ...]:
    """Return all devices, in the order of their file."""
    return tuple(_device(row) for row in _rows("devices.csv"))


@cache
def links() -> tuple[CatalogueLink, ...]:
    """Return all links, in the order of their file."""
    return tuple(
        CatalogueLink(
            row["id"],
            row["name"],
            row["kind"],
            float(row["gbs"]),
            float(row["spec_gbs"]),
            row["confidence"],
            row["notes"],
            row["source"],
        )
        for row in _rows("links.csv")
    )


@cache
def latencies() -> Mapping[tuple[str, str], Latency]:
    """Return NCCL's latencies by (kind, algorithm): launch, nvlink, pcie, network; ring, tree, switch, pat."""
    rows = (
        Latency(
            row["kind"],
            row["algorithm"],
            float(row["ll_us"]),
            float(row["ll128_us"]),
            float(row["simple_us"]),
            row["confidence"],
            row["source"],
        )
        for row in _rows("latencies.csv")
    )
    return {(row.kind, row.algorithm): row for row in rows}


def kept_in(precision: str) -> str:
    """Return in what all but matrix products computes, and weights and states are kept."""
    return "bf16" if precision in NARROW else precision


def check_precision(device: CatalogueDevice, precision: str) -> None:
    """Refuse a precision that the device's matrix units do not have.

    Raises
    ------
    UsageError
        Naming the precisions that it has.
    """
    if precision not in device.tflops:
        raise UsageError(
            f"{device.name} ({device.id}) has no {precision}; it has {', '.join(device.tflops)}: choose one of these, "
            "or another device"
        )


def overlap_slowdown(device: CatalogueDevice) -> float:
    """Return by what compute on this device slows while communication runs at the same time (1: not at all).

    Source: Lee et al., Characterizing compute-communication overlap in GPU-accelerated distributed deep learning,
    2025 (A100, H100 and MI200 with DDP- and FSDP-like traffic): 18.9 % on average, 40.0 % at most. Devices that they
    did not measure take the same figure, which `overlap_source` calls an estimate.
    """
    return device.overlap_slowdown


def _device(row: Mapping[str, str]) -> CatalogueDevice:
    return CatalogueDevice(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        memory_gib_label=float(row["memory_gib_label"]),
        memory_bytes=int(row["memory_mib"]) * MIB,
        memory_source=row["memory_source"],
        memory_gbs=float(row["memory_gbs"]),
        tflops={name: float(value) for name in PRECISIONS if (value := row[f"{name}_tflops"])},
        figures=row["figures"],
        scaleup_link=row["scaleup_link"],
        scaleup_links=int(row["scaleup_links"] or 0),
        scaleup_gbs=float(row["scaleup_gbs"] or 0),
        scaleup_domain=int(row["scaleup_domain"]),
        pair_gbs=float(row["pair_gbs"] or 0),
        switch_share=float(row["switch_share"] or 0),
        pcie_link=row["pcie_link"],
        host_network_gbs=float(row["host_network_gbs"] or 0),
        host_devices=int(row["host_devices"]),
        peer_to_peer=row["peer_to_peer"] == "yes",
        matmul_fraction=float(row["matmul_fraction"] or 0),
        fp8_matmul_fraction=float(row["fp8_matmul_fraction"] or 0),
        overlap_slowdown=float(row["overlap_slowdown"]),
        overlap_source=row["overlap_source"],
        confidence=row["confidence"],
        notes=row["notes"],
        source=row["source"],
    )


def _device_of(path: str) -> CatalogueDevice:
    found = _device(device_row(path, PRECISIONS))
    for name in filter(None, (found.pcie_link, found.scaleup_link)):
        link(name)  # refused before anything rests on it
    return found


def _rows(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _known(name: str, known: tuple[str, ...], what: str) -> str:
    if name in known:
        return name
    near = get_close_matches(name, known, 4, 0.4) or known
    raise InvalidInput(f"the catalogue has no {what} {name!r}; near it are {', '.join(near)}")
