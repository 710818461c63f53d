"""A device that the catalogue lacks, from a small file of its user's: the keys of a row of ``devices.csv`` (TOML).

The file's path is the device's id, so that profiles and clusters find it again. What it leaves out is not known, or as
of most devices; `figures` are dense. Leaves out efficiencies by shape, which are those of any device.
"""

from collections.abc import Mapping
from pathlib import Path

from costmodel.files import read_toml

SUFFIX = ".toml"
REQUIRED = ("id", "source", "memory_gib_label", "memory_gbs")
DEFAULTS: Mapping[str, str] = {
    "vendor": "", "memory_source": "the label", "figures": "dense", "scaleup_link": "", "scaleup_links": "0",
    "scaleup_gbs": "0", "scaleup_domain": "1", "pair_gbs": "0", "switch_share": "0", "pcie_link": "pcie5",
    "host_network_gbs": "0", "host_devices": "8", "peer_to_peer": "yes", "matmul_fraction": "0",
    "fp8_matmul_fraction": "0", "overlap_slowdown": "1.19", "overlap_source": "as of the catalogue's devices",
    "confidence": "low", "notes": "",
}  # fmt: skip
WORDS = {"figures": ("dense",), "peer_to_peer": ("yes", "no"), "confidence": ("high", "medium", "low")}
TEXTS = ("id", "name", "source", "vendor", "memory_source", "scaleup_link", "pcie_link", "overlap_source", "notes")
WHOLE = ("memory_mib", "scaleup_links", "scaleup_domain", "host_devices")
LEAST = {"memory_gib_label": 0.001, "memory_mib": 1, "memory_gbs": 0.001, "scaleup_domain": 1, "host_devices": 1,
         "overlap_slowdown": 1}  # fmt: skip
MOST = {
    "switch_share": 1,
    "matmul_fraction": 1,
    "fp8_matmul_fraction": 1,
    "memory_gib_label": 10**6,
    "overlap_slowdown": 10,
}
MOST_OTHERS = 10**9


def device_row(path: str, precisions: tuple[str, ...]) -> dict[str, str]:
    """Return a device file as a row of the catalogue whose id is the path.

    Raises
    ------
    InvalidInput
        On a file that cannot be read, an unknown key, or no rate of any precision.
    """
    root, rates = read_toml(Path(path)), tuple(f"{name}_tflops" for name in precisions)
    fields = root.members(REQUIRED, ("name", "memory_mib", *DEFAULTS, *rates))
    if not any(name in fields for name in rates):
        root.fail(f"give the device's dense peak in at least one precision, as {', '.join(rates)}")
    found = {**DEFAULTS, **dict.fromkeys(rates, "")}
    for name, node in fields.items():
        if name in WORDS:
            found[name] = node.text(WORDS[name])
        elif name in TEXTS:
            found[name] = node.text()
        elif name in WHOLE:
            found[name] = str(node.integer(int(LEAST.get(name, 0)), MOST_OTHERS))
        else:
            least = 0.001 if name in rates else LEAST.get(name, 0)
            found[name] = repr(node.number(least, MOST.get(name, MOST_OTHERS)))
    found.setdefault("name", found["id"])
    found.setdefault("memory_mib", str(round(float(found["memory_gib_label"]) * 1024)))
    return {**found, "id": path}
