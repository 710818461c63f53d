"""How a process of the call measures: in a smoke twice, and every model is its small one, on the device too."""

from dataclasses import replace

import torch

from benchmarks.gpu.call.errand import Errand
from benchmarks.gpu.setting import SMALL_SIZES, Setting, Subject
from costmodel.capture.heap import keep_freed_memory
from costmodel.profiling.measure import rounds
from costmodel.profiling.options import Options

SETTLE_S = {"smoke": 0.3, "main": 4.0}
"""The profiler's own limit of 20 s a size would take minutes for models that a host paces."""


class _Small(Setting):
    """Small models on the device; one that is measured block by block still is."""

    def spec(self, subject: Subject) -> str:
        return f"zoo:{subject.name}:small"

    def options(self, subject: Subject) -> Options:
        limit = 2**20 if subject.limit_gib else 0
        return replace(super().options(subject), microbatch_sizes=SMALL_SIZES, memory_limit_bytes=limit)


def setting_for(errand: Errand) -> Setting:
    """Return the setting of a process; its models are those of its own name."""
    rounds.SETTLE_S = SETTLE_S[errand.plan]
    torch.set_num_threads(1)
    keep_freed_memory()
    smoke = errand.plan == "smoke"
    made = _Small if smoke and errand.device == "cuda" else Setting
    return made(torch.device(errand.device), errand.work, 2 if smoke else 5, (errand.name,))
