"""What lives in no operator of a profile, measured on the whole model, and its JSON.

Leaves out how it is measured (`costmodel.profiling`).
"""

from dataclasses import dataclass
from typing import Annotated

from costmodel.codec import UNSAID, Json
from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.forms import JsonForm, listed, number


@dataclass(frozen=True, slots=True)
class SplitRatios:
    """What splitting a backward into I and W costs: F / F, and (I + W) / B, of the split form to the undivided one."""

    forward: float = 1.0
    backward: float = 1.0


_RATIOS = listed(number(1))
_KEYS = ("forward_ratio", "backward_ratio")


def _split(node: Node) -> tuple[SplitRatios, ...]:
    members = node.members(_KEYS)
    forward, backward = (_RATIOS.read(members[key]) for key in _KEYS)
    if len(forward) != len(backward):
        node.fail(f"{len(forward)} and {len(backward)} ratios; give one of each a micro-batch size")
    return tuple(map(SplitRatios, forward, backward))


SPLIT = JsonForm[tuple[SplitRatios, ...]](
    _split,
    lambda split: {"forward_ratio": [each.forward for each in split], "backward_ratio": [e.backward for e in split]},
    lambda known: {
        "type": "object",
        "description": "A backward in two halves against an undivided one: F / F and (I + W) / B, one entry a size.",
        "required": list(_KEYS),
        "properties": dict.fromkeys(_KEYS, _RATIOS.schema(known)),
        "additionalProperties": False,
    },
)
"""As files hold it: a list of each ratio."""


@dataclass(frozen=True, slots=True)
class WholeModelMeasurements:
    """Measured on the whole model.

    `step_ns` (one entry a micro-batch size) is a separate run of one forward and backward with the
    loss; `accumulate_ns` is the time to add one micro-batch's gradients of all parameters to those
    that are there (`Profile.accumulate_of`: of each); `optimizer_ns` one optimizer step over all
    parameters; `split` (one entry a size, or none where it was not measured) holds ratios of at least 1.
    """

    step_ns: Annotated[tuple[int, ...], Json(says="One entry a micro-batch size.")]
    loss_ns: int = 0
    accumulate_ns: int = 0
    optimizer_ns: int = 0
    split: Annotated[tuple[SplitRatios, ...], UNSAID, Json(form=SPLIT)] = ()

    def check(self, num_sizes: int) -> None:
        """Refuse lists that have not one entry a micro-batch size, and ratios below 1."""
        if len(self.step_ns) != num_sizes:
            raise InvalidInput(f"whole.step_ns needs {num_sizes} entries, one a micro-batch size")
        if len(self.split) not in (0, num_sizes):
            raise InvalidInput(f"whole.split needs {num_sizes} entries in each list, one a micro-batch size")
        for ratios in self.split:
            if min(ratios.forward, ratios.backward) < 1:
                raise InvalidInput(f"whole.split holds {ratios.forward} and {ratios.backward}; a ratio is at least 1")

    def split_at(self, sizes: tuple[int, ...], microbatch_size: int) -> SplitRatios:
        """Return the ratios of the measured size that is nearest to this one, 1 where none were measured."""
        if not self.split:
            return SplitRatios()
        return self.split[min(range(len(sizes)), key=lambda i: abs(sizes[i] - microbatch_size))]
