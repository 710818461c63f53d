"""The catalogue: every row has its source, and its figures agree with each other or say in a note why not."""

from pathlib import Path

import pytest

from costmodel.calibration import family_of
from costmodel.errors import InvalidInput, UsageError
from costmodel.machines import catalogue
from costmodel.machines.catalogue import CatalogueDevice, check_precision, overlap_slowdown
from costmodel.machines.cluster import read_cluster

GIB = 2**30
DEVICES = pytest.mark.parametrize("device", catalogue.devices(), ids=lambda device: device.id)
RATIOS = (("tf32", "fp16", 2.0), ("tf32", "bf16", 2.0), ("fp16", "bf16", 1.0), ("bf16", "fp8", 2.0))
"""A narrower number is computed so many times as fast on every device here that has both."""

PUBLISHED_DENSE = {  # 16-bit, dense, with fp32 accumulation, as the vendors' datasheets give them
    "v100-sxm2-16": 125,
    "a100-sxm-80": 312,
    "h100-sxm-80": 989,
    "h100-pcie-80": 756,
    "b200-sxm-180": 2250,
    "mi300x-192": 1307.4,
    "l4-24": 121,
}


@DEVICES
def test_every_device_has_a_source_a_confidence_and_dense_figures(device: CatalogueDevice) -> None:
    assert device.source
    assert device.memory_source
    assert device.overlap_source
    assert device.confidence in ("high", "medium", "low")
    assert device.figures == "dense"


def test_every_link_and_latency_has_a_source_and_a_confidence() -> None:
    for row in (*catalogue.links(), *catalogue.latencies().values()):
        assert row.source
        assert row.confidence in ("high", "medium", "low")


@DEVICES
def test_figures_that_are_derived_or_from_memory_are_not_of_high_confidence(device: CatalogueDevice) -> None:
    if device.notes.startswith(("from memory", "derived", "peaks taken")) or "from memory" in device.source:
        assert device.confidence != "high"


@DEVICES
@pytest.mark.parametrize(("wide", "narrow", "ratio"), RATIOS)
def test_a_narrower_precision_is_faster_by_a_whole_factor(
    device: CatalogueDevice, wide: str, narrow: str, ratio: float
) -> None:
    if wide in device.tflops and narrow in device.tflops:
        found = device.tflops[narrow] / device.tflops[wide]
        noted = any(f"{device.tflops[name]:g}" in device.notes for name in (wide, narrow))
        assert found == pytest.approx(ratio, rel=0.015 if noted else 0.002)


@pytest.mark.parametrize(("device_id", "tflops"), PUBLISHED_DENSE.items())
def test_peaks_are_the_dense_ones_where_the_vendor_also_prints_sparse_ones(device_id: str, tflops: float) -> None:
    assert catalogue.device(device_id).tflops["fp16"] == pytest.approx(tflops, rel=0.001)


@DEVICES
def test_the_scale_up_rate_is_that_of_a_link_times_the_links(device: CatalogueDevice) -> None:
    if not device.scaleup_link:
        assert (device.scaleup_links, device.scaleup_gbs, device.scaleup_domain) == (0, 0, 1)
        return
    link = catalogue.link(device.scaleup_link)
    assert device.scaleup_gbs == pytest.approx(link.gbs * device.scaleup_links)
    assert 0.75 <= link.gbs / link.spec_gbs <= 1.0
    assert device.pair_gbs < device.scaleup_gbs


@DEVICES
def test_the_memory_is_at_most_its_label_and_at_least_nine_tenths_of_it(device: CatalogueDevice) -> None:
    assert 0.9 <= device.memory_bytes / (device.memory_gib_label * GIB) <= 1.0


@DEVICES
def test_shares_are_shares_and_communication_never_speeds_compute(device: CatalogueDevice) -> None:
    for share in (device.matmul_fraction, device.fp8_matmul_fraction):
        assert 0 <= share < 1
    assert 1 <= overlap_slowdown(device) <= 1.4
    assert device.pcie_gbs > 0


def test_a_link_of_pcie_doubles_with_each_generation_and_a_network_with_its_rate() -> None:
    rate = {link.id: link.gbs for link in catalogue.links()}
    assert [rate[name] for name in ("pcie3", "pcie4", "pcie5")] == [12.0, 24.0, 48.0]
    assert [rate[name] for name in ("ib-edr-100", "ib-hdr-200", "ib-ndr-400")] == [12.0, 24.0, 48.0]
    assert all(link.gbs <= link.spec_gbs for link in catalogue.links())


def test_an_unknown_id_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(InvalidInput, match=r"no device 'a100-80'; near it are .*a100-sxm-80"):
        catalogue.device("a100-80")
    with pytest.raises(InvalidInput, match=r"no link 'nvlink'; near it are .*nvlink4"):
        catalogue.link("nvlink")


def test_a_precision_that_the_device_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(UsageError, match=r"V100 SXM2 16GB \(v100-sxm2-16\) has no bf16; it has fp32, fp16"):
        check_precision(catalogue.device("v100-sxm2-16"), "bf16")
    with pytest.raises(UsageError, match="has no fp8; it has fp32, tf32, fp16, bf16"):
        check_precision(catalogue.device("a100-sxm-80"), "fp8")
    check_precision(catalogue.device("h100-sxm-80"), "fp8")


@DEVICES
def test_nvfp4_is_refused_wherever_matrix_units_lack_it(device: CatalogueDevice) -> None:
    """AMD's 4-bit formats (MXFP4) are others."""
    if device.vendor == "NVIDIA" and family_of(device.id) == "blackwell":
        check_precision(device, "nvfp4")
        assert device.tflops["nvfp4"] >= 2 * device.tflops["fp8"] * 0.99
    else:
        with pytest.raises(UsageError, match=f"{device.id}.* has no nvfp4; it has"):
            check_precision(device, "nvfp4")


@DEVICES
def test_a_switch_sums_only_between_devices_that_a_scale_up_link_joins(device: CatalogueDevice) -> None:
    assert 0 <= device.switch_share < 1
    assert not device.switch_share or (device.vendor == "NVIDIA" and device.scaleup_domain > 2)


OWN = 'id = "lab"\nsource = "its sheet"\nmemory_gib_label = 64\nmemory_gbs = 1600\nbf16_tflops = 400\n'


def test_a_device_of_a_users_own_stands_in_a_file_whose_path_is_its_id(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(OWN + 'scaleup_link = "nvlink3"\nscaleup_links = 12\nscaleup_gbs = 240\nscaleup_domain = 8\n')
    known = catalogue.device(str(file))
    assert (known.id, known.name, known.memory_bytes) == (str(file), "lab", 64 * GIB)
    assert known.tflops == {"bf16": 400}
    assert (known.scaleup_domain, known.host_devices, known.confidence) == (8, 8, "low")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OWN.replace("bf16_tflops = 400\n", ""), "dense peak in at least one precision"),
        (OWN + "tensor_cores = 4\n", "tensor_cores"),
        (OWN.replace("1600", "-1"), "memory_gbs"),
        (OWN.replace("64", "nan"), "lab.toml"),
        (OWN + 'pcie_link = "pcie9"\n', "no link 'pcie9'"),
        (OWN + 'figures = "sparse"\n', "figures"),
        (OWN.replace('source = "its sheet"\n', ""), "source"),
        ("id =", "lab.toml"),
    ],
)
def test_a_device_file_that_says_too_little_or_what_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        catalogue.device(str(file))


def test_a_cluster_file_names_a_device_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(OWN)
    (tmp_path / "cluster.toml").write_text(
        'format = "penstock-cluster"\nversion = 1\n[[device]]\nname = "lab"\ncatalogue = "lab.toml"\n[[host]]\n'
        'device = "lab"\ndevices = 2\n[[link]]\nname = "l"\ngroup = 0\nbandwidth_gbs = 20.0\nlatency_us = 5.0\n'
        'kind = "scale-up"\n'
    )
    cluster = read_cluster(tmp_path / "cluster.toml")
    assert cluster.devices[0].memory_bytes == 64 * GIB
    assert cluster.link_kind(cluster.groups[0]) == "nvlink"
