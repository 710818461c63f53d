"""Where a profile comes from, as far as it steers what may be done with it: typed, and not in free provenance.

Leaves out what only readers want to know: versions, options, dates are in the profile's `provenance`.
"""

from dataclasses import asdict, dataclass

from costmodel.files import Node


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

    plan_only: str = ""
    estimated: tuple[str, ...] = ()
    precision: str = ""
    autocast: str = ""
    calibration: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        body = {**asdict(self), "estimated": list(self.estimated)}
        return body if self.calibration else {key: value for key, value in body.items() if key != "calibration"}

    @classmethod
    def from_node(cls, node: Node) -> "Origin":
        """Read the JSON form."""
        fields = node.members(("plan_only", "estimated", "precision", "autocast"), ("calibration",))
        return cls(
            fields["plan_only"].text(),
            fields["estimated"].texts(),
            fields["precision"].text(),
            fields["autocast"].text(),
            fields["calibration"].text() if "calibration" in fields else "",
        )


ROOFLINE = "the profile's times are roofline estimates"
