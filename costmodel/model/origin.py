"""Where a profile comes from, as far as it steers what may be done with it: typed, and not in free provenance.

Leaves out what only readers want to know: versions, options, dates are in the profile's `provenance`.
"""

from dataclasses import dataclass
from typing import Annotated

from costmodel.codec import NEEDED, UNSAID


@dataclass(frozen=True, slots=True)
class Origin:
    """What steers planning, in addition to the numbers.

    Attributes
    ----------
    plan_only : str
        Why no executor can run the model; empty where one can.
    estimated : tuple of str
        Why times are estimates; empty where all were measured.
    precision : str
        Mixed precision that a described model trains in; empty where states are kept as profiled.
    autocast : str
        The dtype that autocast computes in while the model trains; empty without.
    calibration : str
        Digest of the runs that times were moved to (``penstock calibrate``); empty without.
    """

    plan_only: Annotated[str, NEEDED] = ""
    estimated: Annotated[tuple[str, ...], NEEDED] = ()
    precision: Annotated[str, NEEDED] = ""
    autocast: Annotated[str, NEEDED] = ""
    calibration: Annotated[str, UNSAID] = ""


ROOFLINE = "the profile's times are roofline estimates"
