"""What a call asks: its steps in order, how long each may take, and what its rows answer.

The one list that the parent goes by and ``--dry-run`` prints. Standard library alone. Leaves out how a question is
measured (`model`, `machine`, `exact`).
"""

from dataclasses import dataclass

PASSES = ("profile,whole", "kernels,one_stage", "stages,parts")
"""What a model is asked each time that it has the device."""

BOXES = {"llama3": (95, 45, 75), "mmt": (60, 40, 40), "unet3d": (75, 30, 40), "dlrm": (50, 25), "yolo": (60, 30),
         "uno": (45, 25), "moe": (90,)}  # fmt: skip
"""Seconds that each model of a main call has for each of its passes; by value per second, the largest model last."""

SMOKE = {"llama3": 3, "mmt": 3, "dlrm": 2, "moe": 1, "unet3d": 2}
"""Passes of each model of a smoke, which all run at small size beside each other."""

MEASURED = {
    "smoke": {"machine": 9, "model llama3": 37, "model mmt": 59, "model dlrm": 28, "model moe": 57, "model unet3d": 27,
              "ranks over gloo": 42, "ranks over nccl": 42, "fingerprints": 90},
    "main": {"machine": 2, "ranks over gloo": 63, "ranks over nccl": 63, "fingerprints": 90, "llama3: captured": 21,
             "yolo: profile,whole": 33, "uno: profile,whole": 15, "mmt: stages,parts": 18, "unet3d: stages,parts": 17},
}  # fmt: skip
"""Seconds that steps without an error took on one H100 (``benchmarks/results/h100``)."""

ANSWERS = {
    "machine": "What do products, copies, launches and a bare context take here, and at which settings?",
    "captured": "How long does the model load and get captured while another one is measured?",
    "model": "Does every question of the model come to its end at small size?",
    PASSES[0]: "Do operators' times add up to a plain step's, and their bytes to the allocator's peak?",
    PASSES[1]: "Has each kernel the operator of torch's own links, and what does the executor add to a plain loop?",
    PASSES[2]: "Do stages and parts that run alone take the time and memory that the profile says?",
    "ranks over gloo": "Do four ranks that share the device train exactly, messages over gloo?",
    "ranks over nccl": "Do two ranks on one GPU train exactly, messages by NCCL?",
    "fingerprints": "Has a model that is captured on the device the fingerprint that it has on the CPU?",
}


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step as it is noted: how long it may take, what to expect on an H100, and the question that its rows answer."""

    label: str
    box_s: float
    expected_s: float
    answers: str


@dataclass(frozen=True, slots=True)
class Agenda:
    """What is asked in how many seconds, of which of the plan's models (none named: all), with so many host cores."""

    plan: str
    seconds: float = 520.0
    device: str = "cuda"
    models: tuple[str, ...] = ()
    cores: int = 1

    def passes(self) -> dict[str, int]:
        """Return how many passes each model that is asked for has, in the order in which they are asked."""
        counts = SMOKE if self.plan == "smoke" else {name: len(boxes) for name, boxes in BOXES.items()}
        return {name: count for name, count in counts.items() if not self.models or name in self.models}

    def steps(self) -> list[TimedStep]:
        """Return all steps; a box ends with the call's seconds, if these are over before."""
        on_gpu = self.device == "cuda"
        beside = [("ranks over gloo", 90.0), ("ranks over nccl", 90.0)] if on_gpu and not self.models else []
        if self.plan == "smoke":
            found = [("machine", 40.0), *((f"model {name}", self.seconds) for name in self.passes()), *beside]
            if self.cores > 4 and not self.models:
                found.append(("fingerprints", 30.0))
            return [self._timed(*step) for step in found]
        found = []
        for name, count in self.passes().items():
            found.append((f"{name}: captured", 90.0))
            if len(found) == 1:
                found += [*beside, ("machine", 30.0 if on_gpu else 120.0)]
            found += [(f"{name}: {PASSES[i]}", BOXES[name][i] * (1.0 if on_gpu else 8.0)) for i in range(count)]
        return [self._timed(*step) for step in [*found, ("fingerprints", 45.0)]]

    def _timed(self, label: str, box_s: float) -> TimedStep:
        """Expect what was measured; before that half the box, and nothing for captures while others are measured."""
        kind = label if label in ANSWERS else label.rpartition(": ")[2].partition(" ")[0]
        guess = 0.0 if kind == "captured" else box_s / 2
        return TimedStep(label, box_s, min(box_s, MEASURED[self.plan].get(label, guess)), ANSWERS[kind])

    def table(self) -> str:
        """Return the steps as lines to read."""
        head = f"{'step':26} {'box s':>6} {'expected s':>10}  what its rows answer"
        rows = (f"{s.label:26} {s.box_s:6.0f} {s.expected_s:10.0f}  {s.answers}" for s in self.steps())
        what = f"{self.plan}, {self.device}, {self.seconds:.0f} s; expected as measured on one H100, else half the box"
        return "\n".join([what, head, *rows])
