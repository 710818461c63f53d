"""Stages of whole layers that a person fixes (``plan --layers``), as pins that keep each stage's operators together.

Leaves out ranks and configurations, which stay open.
"""

from dataclasses import replace

from costmodel.errors import UsageError
from costmodel.model.graph import OperatorGraph
from planner.graph.layers import layers_of, trainer_layers
from planner.question.pins import Group, Pins
from planner.question.space import Space

FLAG = "--layers"


def with_layers(graph: OperatorGraph, layers: str, space: Space, pins: Pins | None) -> tuple[Space, Pins]:
    """Return the space and pins under which stages have these layers.

    Parameters
    ----------
    layers : str
        ``equal``, or the layers of each stage.

    Raises
    ------
    UsageError
        When they are no layers, or not as many as there are stages, or the model has others.
    NoPlanFits
        For more stages than layers.
    """
    counts = layers_of(layers)
    chunks = space.chunks or 1
    places = space.stages or len(counts) // chunks
    if not places:
        raise UsageError(f"{FLAG} {layers} cuts a model into as many stages as there are; give --stages")
    rows = trainer_layers(graph, places * chunks, counts)
    groups = tuple(Group(tuple(graph.operators[i].name for i in row), FLAG) for row in rows)
    own = pins or Pins(groups)
    together = groups if pins is None else (*pins.together, *groups)
    return replace(space, stages=places, chunks=chunks), replace(own, together=together)
