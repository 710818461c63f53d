"""The random numbers that a stage will draw next, noted and put back: a recomputed forward draws them again.

A GPU has a generator of its own beside the CPU's. Leaves out generators that a model brings along.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of the CPU's generator and of the GPU's, where the stage is on one."""

    host: torch.Tensor
    device: torch.Tensor | None = None


def random_state(device: torch.device) -> RandomState:
    """Return the state from which a stage on this device draws."""
    return RandomState(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)


def set_random_state(state: RandomState, device: torch.device) -> None:
    """Draw from this state on."""
    torch.set_rng_state(state.host)
    if state.device is not None:
        torch.cuda.set_rng_state(state.device, device)
