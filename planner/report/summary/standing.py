"""What a plan's price of each device rests on: measured operators, constants fitted on it, or its data sheet alone.

A fitted constant moves a device by up to half against its sheet, so that two devices compare only where they stand
alike. Leaves out how far off each is (`costmodel.calibration.Calibration.step_error`).
"""

from costmodel.calibration import published
from costmodel.model.origin import ROOFLINE
from planner.plan import Plan

MEASURED, FITTED, DATASHEET = "measured", "fitted", "datasheet"


def standings(plan: Plan) -> dict[str, str]:
    """Return by type of device what its price rests on; where a plan has a calibration of its own that counts."""
    known = plan.assumptions
    used = dict.fromkeys(plan.cluster.device_of(rank) for rank in range(len(plan.orders)))
    if ROOFLINE not in known.estimated:
        return {device.name: MEASURED for device in used}
    return {
        device.name: FITTED
        if known.calibration or published().is_fitted(device.catalogue, known.precision)
        else DATASHEET
        for device in used
    }
