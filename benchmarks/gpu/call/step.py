"""One process of the call: a model that waits for its turns, the machine, fingerprints, or ranks."""

import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.call.errand import Errand

ASKED = {
    "model": ("model", "ask_model"),
    "machine": ("machine", "ask_machine"),
    "fingerprints": ("exact", "fingerprints"),
    "ranks": ("exact", "ranks"),
    "nccl": ("exact", "nccl"),
}
"""Which module's function asks; torch comes with it."""


def main(what: str, name: str, plan: str, device: str, work: str) -> None:
    """Ask what the words say, in the name of a model or of the step."""
    errand = Errand(name, Path(work), plan, device)
    if what == "model":
        errand.write(question="start", seconds=0, row={"model": name, "pid": os.getpid()})
    module, function = ASKED[what]
    getattr(import_module(f"benchmarks.gpu.call.{module}"), function)(errand)


if __name__ == "__main__":
    main(*sys.argv[1:])
