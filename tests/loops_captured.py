"""Loops about what was captured of a model: what a loop changes later, and what a capture cannot see."""

from tests.loop_models import Tower, mse, vectors
from tests.user_loops import STEPS, Job, user_loop


@user_loop("captured")
def trains_plainly(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0])
    for x, y in batches:
        job.step(x, y)


class _Annealed(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0

    def forward(self, x):
        return super().forward(x) / self.temperature


@user_loop("captured", refused="temperature")
def anneals_a_temperature(job: Job) -> None:
    model, batches = _Annealed(), vectors(STEPS)
    job.start(model, mse, *batches[0])
    for number, (x, y) in enumerate(batches):
        model.temperature = 1.0 + 0.5 * (number // 2)
        job.step(x, y)
