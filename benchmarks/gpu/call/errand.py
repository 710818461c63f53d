"""What one process of the call was sent for: its rows, written at once, and its turns on the device.

Standard library alone. A question that fails is a row with ``error``, and the next one is asked.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Answer = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One row, or several."""


@dataclass(frozen=True, slots=True)
class Errand:
    """A process: under which name its rows and turns go, in which folder, of which plan and on which device."""

    name: str
    work: Path
    plan: str = "main"
    device: str = "cuda"
    parent: int = field(default_factory=os.getppid)

    def write(self, **row: object) -> None:
        """Write a row down before anything else happens."""
        line = json.dumps(row, default=str)
        with (self.work / "rows" / f"{self.name}.jsonl").open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(line[:2000], flush=True)

    def ask(self, question: str, call: Callable[[], Answer]) -> None:
        """Write down what a question answers, or why it does not."""
        start, cpu = time.perf_counter(), time.process_time()
        error: dict[str, object] = {}
        found: Answer = ()
        try:
            found = call()
        except Exception as failure:
            traceback.print_exc()
            why = f"{type(failure).__name__}: {failure}"[:2500]
            error = {"model": self.name, "error": why, "traceback": traceback.format_exc()[-3000:]}
        each = {"seconds": round(time.perf_counter() - start, 1), "cpu_s": round(time.process_time() - cpu, 1)}
        if error:
            self.write(question=question, **each, **error)
        for row in [found] if isinstance(found, Mapping) else found:
            self.write(question=question, **each, row={"model": self.name, **row})

    def await_turn(self, number: int) -> None:
        """Wait until the parent gives the device; end where the parent is gone."""
        while not (self.work / "go" / f"{self.name}.{number}").exists():
            if os.getppid() != self.parent:
                sys.exit("the parent is gone")
            time.sleep(0.01)

    def tell(self, what: str) -> None:
        """Tell the parent how far this is: ``ready`` to be measured, or the number of a pass that is done."""
        (self.work / "done" / f"{self.name}.{what}").touch()
