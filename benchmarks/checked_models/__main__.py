"""Forty models on two ranks with ``--check``: each as people write it, gradients held against one process.

    python -m benchmarks.checked_models [--only REGEX] [-o FILE.jsonl]

A row is one model: captured here, cut into two stages of equally many operators, run for two steps by two ranks of
`torchrun`, under 1F1B, GPipe and split backwards in turn. Models are the zoo's small ones and those that the installed
transformers builds from a configuration; what it does not know is passed over and said. Exit 1 where one is neither
exact nor refused. Rows that the file holds are not asked again. Leaves out divided stages.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.checked_models.small_models import CAUSAL, MASKED, VISION
from benchmarks.gpu.execution import run_ranks
from benchmarks.support.kept_rows import add_output, kept, read_rows
from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.errors import PenstockError
from planner.plan import write_plan
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand, split_backwards

ZOO = ("gpt:small", "llama3:small", "mmt:small", "uno:small", "t5:small", "clip:small", "vlm:small", "dlrm:small",
       "moe:small", "resnet50:small", "vit:small", "unet3d:small")  # fmt: skip
OURS = "benchmarks.checked_models.small_models"
MODELS = (*(f"zoo:{name}" for name in ZOO), *(f"{OURS}:{name}" for name in (*CAUSAL, *MASKED, *VISION)))
SCHEDULES = ("graph-1f1b", "gpipe", split_backwards)
LIMIT = 1e-5
"""Largest error of a gradient, and of the loss, that is called exact."""
SECONDS = 240.0
REFUSED = re.compile(r"exitcode\s*:\s*[367]\b")
"""What torchrun says of a rank that refuses: by an exit code that means so."""


def row(spec: str, number: int, folder: Path) -> dict[str, Any]:
    """Return what came of one model: its errors, or the words of a refusal."""
    start, schedule = time.perf_counter(), SCHEDULES[number % len(SCHEDULES)]
    found: dict[str, Any] = {"model": spec, "schedule": schedule if isinstance(schedule, str) else "split"}
    path = folder / "plan.json"
    try:
        captured = capture(load_model(spec, 2), 2)
        write_plan(path, plan_by_hand(captured, in_equal_runs(captured.operators, 2), schedule=schedule))
        found["operators"] = len(captured.operators)
        answer, _ = run_ranks(2, "executor", [str(path), "--model", spec, "--steps", "2", "--check", "--json"], SECONDS)
        found |= {"gradient_error": answer["max_gradient_error"], "loss_error": answer["loss_error"]}
    except PenstockError as error:
        found["refused"] = str(error)
    except Exception as error:  # one model of many; the row says what happened
        said = f"{type(error).__name__}: {error}"
        found["refused" if REFUSED.search(said) else "error"] = said[-600:]
    return {**found, "seconds": round(time.perf_counter() - start, 1), "load": round(os.getloadavg()[0], 1)}


def rows(models: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of models, which a schedule each is dealt to by their place among all."""
    for spec in models:
        with tempfile.TemporaryDirectory() as folder:
            yield row(spec, MODELS.index(spec), Path(folder))


def verdict(found: dict[str, Any]) -> str:
    """Return ``exact``, ``refused``, ``wrong`` or ``error``."""
    if "gradient_error" not in found:
        return "refused" if "refused" in found else "error"
    return "exact" if max(found["gradient_error"], found["loss_error"]) <= LIMIT else "wrong"


def text_of(found: dict[str, Any]) -> str:
    """Return a row for people."""
    errors = "gradient_error" in found
    said = f"gradient {found['gradient_error']:.1e}, loss {found['loss_error']:.1e}" if errors else ""
    why = found.get("refused", found.get("error", ""))
    return f"{found['model']:60} {found['schedule']:11} {verdict(found):8} {said}{why[:200]} ({found['seconds']} s)"


def main() -> int:
    """Run the models; exit 1 where one is wrong or ends in an error."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checked_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="REGEX")
    add_output(parser)
    args = parser.parse_args()
    chosen = [spec for spec in MODELS if re.search(args.only, spec)]
    found = [each for each in read_rows(args.output) if each["model"] in chosen]
    known = {each["model"] for each in found}
    for each in kept(rows([spec for spec in chosen if spec not in known]), args.output):
        found.append(each)
        print(text_of(each), flush=True)
    counts = {name: sum(verdict(each) == name for each in found) for name in ("exact", "refused", "wrong", "error")}
    print(f"{len(found)} models: {counts}")
    return 1 if counts["wrong"] or counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
