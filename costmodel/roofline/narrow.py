"""Precisions of fewer than 16 bits: which operators compute in them, and the recipes by which values are cast.

A recipe says where scales come from (`recipes.csv`): what a pass over the values costs before they are cast, and by how
much products take longer that apply many scales. Leaves out random signs and Hadamard transforms of NVFP4, and layers
that a recipe keeps in 16 bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from costmodel.calibration import family_of
from costmodel.errors import UsageError
from costmodel.machines.catalogue import NARROW, CatalogueDevice, kept_in
from costmodel.model.graph import OperatorGraph
from costmodel.roofline import tables

PRODUCTS = ("matmul", "convolution")
"""Kinds of work that are priced as matrix products."""
RECIPES = ("delayed", "tensorwise", "rowwise", "blockwise", "mxfp8")
"""Of fp8; NVFP4 has one, of its own name."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How values are cast.

    Attributes
    ----------
    amax_passes : int
        How often the values are read before they are cast.
    product : float
        By how much a product takes longer than with one scale a tensor.
    families : tuple of str
        Of devices that have it (`costmodel.calibration.FAMILIES`); ``*`` for all that have the precision.
    """

    amax_passes: int
    product: float
    families: tuple[str, ...]


@cache
def recipes() -> Mapping[str, Recipe]:
    """Return the table by name."""
    return {
        row["recipe"]: Recipe(int(row["amax_passes"]), float(row["product"]), tuple(row["families"].split()))
        for row in tables.rows("recipes")
    }


def computed_in(graph: OperatorGraph, position: int, precision: str) -> str:
    """Return in what precision an operator computes: a narrow one holds for products of blocks that are no routers.

    Heads stay in 16 bits (Megatron-LM's output layer is none of Transformer Engine's; torchtitan leaves ``output`` out
    by default). Where a model has no blocks all its products are narrow.
    """
    work = graph.operators[position].work
    if precision not in NARROW or work is None:
        return precision
    inside = bool(graph.blocks[position]) or not any(graph.blocks)
    return precision if inside and work.kind in PRODUCTS and work.split != "whole" else kept_in(precision)


def check_recipe(device: CatalogueDevice, name: str) -> None:
    """Refuse a recipe of fp8 that a device's matrix units do not have.

    Raises
    ------
    UsageError
        Naming those that it has.
    """
    family = family_of(device.id)
    has = [row for row in RECIPES if {"*", family} & {*recipes()[row].families} or not family]
    if name not in has:
        raise UsageError(
            f"{device.name} ({device.id}) has no {name} scales of fp8; --fp8-recipe takes {', '.join(has)} there"
        )
