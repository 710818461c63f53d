"""The errors a user can cause, each with the exit code that the command line ends with.

Every message says what was found, what is allowed and the way out; a traceback is only for our own
bugs. Infeasibility is a result of planning and carries its exit code where it is reported.
"""

from typing import ClassVar


class PenstockError(ValueError):
    """Base of all errors that a file, flag or model of the user's causes.

    `alike` says whether all ranks of a pipeline raise it together.
    """

    exit_code: ClassVar[int] = 2
    alike = False


class UsageError(PenstockError):
    """A flag or argument, or a combination of them, that cannot be meant."""

    exit_code = 2


class InvalidInput(PenstockError):
    """Data that breaks a rule of its type: what a file holds, or what a caller built."""

    exit_code = 3


class OtherAtEachSize(InvalidInput):
    """A model falls into other operators at another micro-batch size, so that one graph holds for one size."""


class NoPlanFits(PenstockError):
    """No plan (or no order that was asked for) that satisfies a limit was found, which is proved; says what binds."""

    exit_code = 4


class LimitReached(NoPlanFits):
    """No plan was found to fit, and it is not proved that none does; says what was looked at, of how much."""

    exit_code = 5


class DoesNotMatch(PenstockError):
    """Plan and model, world size or device do not belong together."""

    exit_code = 6


class OutOfMemory(DoesNotMatch):
    """A plan needs more memory than a device has, which shows while it runs."""


class ReadableButWrong(PenstockError):
    """A file that reads well and is wrong: problems found by ``validate`` or ``--check``."""

    exit_code = 7


class PeerLost(PenstockError):
    """Another rank died or stalled."""

    exit_code = 8
