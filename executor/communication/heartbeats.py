"""What ranks say of themselves to each other, a line each, twice a second and when they leave.

Leaves out who hears it and what follows from it (`watch`).
"""

import json
from dataclasses import asdict, dataclass

NOTHING = ""


@dataclass(frozen=True, slots=True)
class Sign:
    """What a rank says of itself.

    Attributes
    ----------
    meeting : int
        Number of what all ranks do together that it has come to last: a step, an evaluation, the end.
    within : str
        Its name while the rank is within it, else nothing.
    waits_for : tuple of int
        Ranks without which it cannot go on.
    leaves : bool
        Whether these are its last words; then `code` is its exit code, `culprit` the rank whose loss is the reason, or
        -1, and `why` its error.
    """

    meeting: int = 0
    within: str = NOTHING
    waits_for: tuple[int, ...] = ()
    leaves: bool = False
    code: int = 0
    culprit: int = -1
    why: str = ""

    def line(self) -> bytes:
        """Return the sign as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> "Sign":
        """Return the sign that a line holds."""
        found = json.loads(line)
        return cls(**{**found, "waits_for": tuple(found["waits_for"])})
