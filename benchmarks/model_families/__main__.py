"""Models that nobody ran: each configuration captured, counted as transformers counts it, and planned for 64 devices.

    python -m benchmarks.model_families [--only REGEX] [--time-limit S] [-o FILE.jsonl]

A row is one configuration of `tests/support/transformers_families.py` (toys of thirty families) or of `shapes.py`
(others with their real widths and few layers), and two commands: `penstock model --source captured` and `penstock plan
--devices 64`. Parameters are held against transformers' own count of the class on `meta`; `tensor` says whether the
ladder has a plan with tensor parallelism, and `whole` which modules that leaves whole. Exit 1 where a command ends
otherwise than with 0 or a refusal, or counts differ. Rows that the file holds are not asked again. Leaves out whether
times are right.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.model_families.shapes import SHAPES
from benchmarks.support.kept_rows import add_output, kept, read_rows
from tests.support.transformers_families import FAMILIES

MODELS = {**{f"toy:{name}": (name, keys) for name, keys in FAMILIES.items()}, **SHAPES}
DEVICES, BATCH = 64, 256
REFUSALS = (3, 4, 5, 6, 7)
"""Exit codes of what is refused, or does not fit."""


def counted(path: Path) -> int:
    """Return the parameters of the class that a configuration names, as transformers counts them."""
    import torch

    from costmodel.capture.hugging_face import build

    with torch.device("meta"):
        return int(build(str(path))["model"].num_parameters())


def row(name: str, folder: Path, time_limit: float) -> dict[str, Any]:
    """Return what the two commands say of a configuration."""
    model_type, keys = MODELS[name]
    path, profile = folder / "config.json", folder / "profile.json"
    path.write_text(json.dumps({"model_type": model_type, **keys}))
    found: dict[str, Any] = {"model": name, "type": model_type}
    made = _command("model", path, "-o", profile, "--source", "captured")
    found |= {"model_exit": made["exit"], "model_s": made["seconds"]}
    if made["exit"]:
        return {**found, "said": made["said"]}
    found |= {"operators": made["operators"], "parameters": made["parameters"], "whole": made["tensor_parallel"]}
    found["counted"] = counted(path)
    plan = _command("plan", profile, "-o", folder / "plan.json", "--devices", DEVICES, "--batch", BATCH,
                    "--time-limit", time_limit)  # fmt: skip
    found["plan_exit"] = plan["exit"]
    if plan["exit"]:
        return {**found, "said": plan["said"]}
    tensor = any("tensor" in rung["strategy"] and not rung["over_memory_bytes"] for rung in plan["rungs"])
    return {**found, "strategy": plan["strategy"], "tensor": tensor}


def _command(*words: object) -> dict[str, Any]:
    """Return a command's answer with its exit code, seconds, and where it is refused what it says."""
    start = time.perf_counter()
    run = subprocess.run([sys.executable, "-m", "planner", *map(str, words), "--json"], capture_output=True, text=True)
    answer = json.loads(run.stdout) if run.returncode == 0 else {"said": run.stderr.strip()[-600:]}
    return {**answer, "exit": run.returncode, "seconds": round(time.perf_counter() - start, 1)}


def verdict(found: dict[str, Any]) -> str:
    """Return ``planned``, ``refused``, ``miscounted`` or ``error``."""
    exits = found["model_exit"], found.get("plan_exit", 0)
    if any(exits):
        return "refused" if all(code in (0, *REFUSALS) for code in exits) else "error"
    return "planned" if found["parameters"] == found["counted"] else "miscounted"


def text_of(found: dict[str, Any]) -> str:
    """Return a row for people."""
    if "strategy" not in found:
        return f"{found['model']:26} {verdict(found):10} {found['said'][-300:]}"
    whole = "" if found["whole"] is True else f"; whole: {', '.join(found['whole'])}"
    return (
        f"{found['model']:26} {verdict(found):10} {found['operators']:5} operators {found['parameters'] / 1e6:10.1f}M "
        f"({found['model_s']:5.1f} s) {found['strategy']:28} {'tensor' if found['tensor'] else 'no tensor rung'}"
        f"{whole[:120]}"
    )


def _rows(names: list[str], time_limit: float) -> Iterator[dict[str, Any]]:
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            yield row(name, Path(folder), time_limit)


def main() -> int:
    """Ask all rows; exit 1 where one is miscounted or ends in an error."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.model_families",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--time-limit", type=float, default=5.0, metavar="S", help="of each plan (default 5)")
    add_output(parser)
    args = parser.parse_args()
    chosen = [name for name in MODELS if re.search(args.only, name)]
    found = [each for each in read_rows(args.output) if each["model"] in chosen]
    known = {each["model"] for each in found}
    for each in found:
        print(text_of(each))
    for each in kept(_rows([name for name in chosen if name not in known], args.time_limit), args.output):
        found.append(each)
        print(text_of(each), flush=True)
    counts = {
        name: sum(verdict(each) == name for each in found) for name in ("planned", "refused", "miscounted", "error")
    }
    print(
        f"{len(found)} configurations: {counts}, {sum(each.get('tensor', False) for each in found)} with a tensor rung"
    )
    return 1 if counts["miscounted"] or counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
