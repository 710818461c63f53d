"""Jobs as people run them: every choice fixed, so that the cut alone is left."""

from costmodel.model.profile import Profile
from planner.answer.decide import plan
from planner.plan import Plan
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from tests.support.described_models import described


def fixed(num_devices: int, choices: dict[str, object]) -> Space:
    """Fix what is left out too: no parallelism of a kind, and stages or replicas for the devices that are left."""
    usual = {"chunks": 1, "tensor": 1, "context": 1, "expert": 1, "sequence_parallel": False, "zero": 0,
             "recompute": "none", "offload": "none"}  # fmt: skip
    given = {**usual, **{name: value for name, value in choices.items() if value is not None}}
    left = num_devices // (int(str(given["tensor"])) * int(str(given["context"])))
    if "stages" not in given and "data" not in given:
        given["stages"] = 1 if given["zero"] or given["expert"] != 1 else left
    if "stages" not in given:
        given["stages"] = left // int(str(given["data"]))
    given.setdefault("data", left // int(str(given["stages"])))
    return Space(**given)  # type: ignore[arg-type]


def job(model: str | Profile, num_devices: int, batch: int, /, **choices: object) -> Plan:
    """Plan a job; what is no choice of `Space` is an option of `Problem`."""
    options = {name: choices.pop(name) for name in list(choices) if name not in Space.__dataclass_fields__}
    profile = described(model) if isinstance(model, str) else model
    given = {"target": "any", "optimizer": "none", "cluster": None, "effort": Effort(60.0, 0.0), **options}
    space = fixed(num_devices, choices)
    return plan(Problem(profile, given.pop("cluster"), num_devices, batch, space=space, **given))  # type: ignore[arg-type]
