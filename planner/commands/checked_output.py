"""Files that a command writes only when all of them can be read back: what is not valid leaves nothing behind.

Leaves out what the files hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from costmodel.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Output:
    """A file: where it goes, how it is written and how it is read."""

    path: str
    write: Callable[[str], None]
    read: Callable[[str], object]


def write_checked(outputs: Sequence[Output]) -> None:
    """Write files, each of which was written elsewhere and read before the first one is put in place.

    Raises
    ------
    InvalidInput
        For what its own reader refuses; nothing is written then.
    """
    with TemporaryDirectory() as folder:
        for number, output in enumerate(outputs):
            trial = str(Path(folder) / f"{number}-{Path(output.path).name}")
            try:
                output.write(trial)
                output.read(trial)
            except InvalidInput as error:
                raise InvalidInput(f"{str(error).replace(trial, output.path)} (nothing is written)") from None
    for output in outputs:
        output.write(output.path)
