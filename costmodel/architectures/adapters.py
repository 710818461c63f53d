"""Low-rank adapters of the frozen linear layers of a described model's blocks (Hu et al., LoRA, ICLR 2022).

Each adapted layer gets two thin ones, named as peft names them, whose product is added to its output; they divide over
tensor-parallel ranks as Megatron-Bridge divides them. Leaves out routers, grouped experts, embedding and head, which
stay frozen without adapters, and the dropout before an adapter.
"""

from dataclasses import dataclass
from typing import Any

from costmodel.architectures.builder import Value
from costmodel.architectures.layer_operators import LayerOperators, join
from costmodel.errors import UsageError
from costmodel.model.blocks import block_of
from costmodel.model.frozen import train_alone
from costmodel.model.graph import OperatorGraph

DOWN, UP = "lora_A", "lora_B"
SPLITS = {"column": ("sequence", "column"), "row": ("row", "sequence")}
"""How the two thin layers are divided where the wide one is divided; else as that."""


@dataclass
class AdaptedLayers(LayerOperators):
    """Operators of layers, of which the adapters of this rank alone train."""

    lora_rank: int = 0

    def linear(self, module: str, x: Value, outer: int, split: str, **shape: Any) -> Value:
        """Multiply by a frozen weight, and add the low-rank term where the layer is one of a block and no router."""
        frozen = super().linear(module, x, outer, split, **shape)
        if split == "whole" or not block_of(module):
            return frozen
        if self.lora_rank > (widest := max(x.width, outer)):
            raise UsageError(f"--lora-rank {self.lora_rank} is above both widths of {module}; give at most {widest}")
        down_split, up_split = SPLITS.get(split, (split, split))
        down = super().linear(join(module, DOWN), x, self.lora_rank, down_split, inner=shape.get("inner", 0))
        up = super().linear(join(module, UP), down, outer, up_split)
        place = "inner" if split == "column" else "sequence"
        return self.elementwise(join(module, "add"), "add", [frozen, up], split=place)

    def graph(self) -> OperatorGraph:
        """Return what was collected, all but the adapters frozen."""
        adapters = {name for name in self.parameters if name.endswith((f".{DOWN}.weight", f".{UP}.weight"))}
        return train_alone(super().graph(), adapters)
