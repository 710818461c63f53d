"""`find` of the adapters of trainers that run stages in one line."""

from collections.abc import Callable
from typing import Any

from planner.plan import Plan


def finder(target: str) -> Callable[..., Plan]:
    """Return `planner.front.find_plan` for a target, unless another one is asked for."""

    def find(name: str, num_devices: int, global_batch: int, **choices: Any) -> Plan:
        from planner.front import find_plan

        return find_plan(name, num_devices, global_batch, **{"target": target, **choices})

    return find
