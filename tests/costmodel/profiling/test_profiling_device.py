"""A GPU's driver says its name and memory; the catalogue's device that this is, and only that."""

import pytest

from costmodel.machines.catalogue import device
from costmodel.profiling.device import _CATALOGUE, catalogue_id

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "mib", "found"),
    [
        ("NVIDIA H100 80GB HBM3", 81_079, "h100-sxm-80"),
        ("NVIDIA H100 PCIe", 81_079, "h100-pcie-80"),
        ("NVIDIA H100 NVL", 95_830, "h100-nvl-94"),
        ("NVIDIA H200", 143_156, "h200-sxm-141"),
        ("NVIDIA H200 NVL", 143_771, "h200-nvl-141"),
        ("NVIDIA GH200 480GB", 97_871, "gh200-96"),
        ("NVIDIA B200", 183_359, "b200-sxm-180"),
        ("NVIDIA GB200", 189_471, "gb200-nvl72"),
        ("NVIDIA A100-PCIE-40GB", 40_536, "a100-pcie-40"),
        ("Tesla V100-SXM2-32GB", 32_510, "v100-sxm2-32"),
        ("NVIDIA A100-SXM4-40GB", 40_326, "a100-sxm-40"),
        ("NVIDIA A100-SXM4-80GB", 81_038, "a100-sxm-80"),
        ("Tesla V100-SXM2-16GB", 16_151, "v100-sxm2-16"),
        ("NVIDIA L4", 22_491, "l4-24"),
        ("NVIDIA L40S", 45_589, "l40s-48"),
        ("NVIDIA A10G", 22_731, "a10g-24"),
        ("NVIDIA GeForce RTX 4090", 24_217, "rtx4090-24"),
    ],
)
def test_a_devices_name_and_memory_give_its_id_in_the_catalogue(name, mib, found):
    assert catalogue_id(name, mib * MIB) == found


@pytest.mark.parametrize(
    ("name", "mib"), [("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40_000), ("NVIDIA A10", 22_731), ("Quadro P400", 2_000)]
)
def test_a_part_of_a_device_or_an_unknown_one_has_no_id(name, mib):
    assert catalogue_id(name, mib * MIB) == ""


def test_every_id_is_one_of_the_catalogue_with_that_memory():
    for _, gigabytes, name in _CATALOGUE:
        assert device(name).memory_bytes == pytest.approx(gigabytes * 1e9, rel=0.11)
