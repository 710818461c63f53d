"""Question `parts` (Show 2): whether a part of a model alone takes what the profile says of its operators.

Three models are cut at random places. Each part runs by itself in a loop of forward and backward, as on a rank that
has nothing else; medians count. Parts of less than a fiftieth of the step are left out.
"""

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.gpu.setting import UNTIMED, Row, Setting, Subject, Verdict, percent, within
from benchmarks.profiler.checks import SMALLEST_SHARE, part_of, random_stages, run_part
from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.capture.parts import Part
from costmodel.model.accumulation import accumulation_of
from costmodel.model.profile import Profile

MODELS = ("mmt", "llama3", "unet3d")
NUM_CUTS = 5


def rows(setting: Setting) -> Iterator[Callable[[], list[Row]]]:
    """Yield what measures each model's parts."""
    for subject in setting.chosen(MODELS):
        yield lambda subject=subject: _rows(setting, subject)  # type: ignore[misc]


def _rows(setting: Setting, subject: Subject) -> list[Row]:
    profile = setting.profile(subject)
    place = len(profile.microbatch_sizes) // 2
    setting.free()
    model = setting.load(subject, profile.microbatch_sizes[place])
    captured = capture(model, model.batch)
    known: dict[str, Any] = dict(captured.bind(model))
    found: list[Row] = []
    for index, names in enumerate(random_stages(captured.operators, NUM_CUTS, seed=0)):
        part = part_of(captured, names)
        measured = _alone(setting, part, known, model)
        found.append({"model": subject.name, "part": index, **_errors(profile, place, part, names, measured)})
        model.module.zero_grad(set_to_none=True)
    return found


def _alone(setting: Setting, part: Part, known: dict[str, Any], model: TrainingModel) -> tuple[float, float]:
    """Run a part in a loop; return the medians of forward and backward in ns, and leave what it sends in `known`."""
    spans = []
    for _ in range(UNTIMED + setting.repeats):
        results, *span = run_part(part, known, model, setting.clock)
        spans.append(span)
    known.update({n: v.detach().requires_grad_(v.requires_grad) for n, v in results.items() if n in part.sends})
    return median(f for f, _ in spans[UNTIMED:]), median(b for _, b in spans[UNTIMED:])


def _errors(
    profile: Profile, place: int, part: Part, names: tuple[str, ...], measured: tuple[float, float]
) -> Mapping[str, Any]:
    times = [profile.times_of[name] for name in names]
    forward = sum(row.forward_ns[place] for row in times)
    backward = sum(row.backward_input_ns[place] + row.backward_weight_ns[place] for row in times)
    backward += accumulation_of(profile).over(part.parameters)
    least = SMALLEST_SHARE * profile.whole.step_ns[place]

    def error(predicted: float, alone: float) -> float | None:
        return percent(predicted / alone) if max(predicted, alone) >= least else None

    return {
        "operators": len(names),
        "forward_ms": round(measured[0] / 1e6, 3),
        "backward_ms": round(measured[1] / 1e6, 3),
        "forward_%": error(forward, measured[0]),
        "backward_%": error(backward, measured[1]),
    }


def verdicts(found: list[Row]) -> list[Verdict]:
    """Judge forwards and backwards apart."""
    return [
        *within("forward of a part alone", found, "forward_%", 5),
        *within("backward of a part alone", found, "backward_%", 5),
    ]
