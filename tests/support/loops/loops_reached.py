"""Loops that change a setting which a forward reads, on each road by which Python lets code read one."""

import contextvars
import functools
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as modules

from tests.support.loops import loop_models
from tests.support.loops.loop_models import WIDTH, Block, Tower, mse, vectors
from tests.support.loops.loops_captured import LATER, ByLambda, train
from tests.support.loops.user_loops import STEPS, Job, UserLoop, add_loop, user_loop

reached = "reached"

Road = tuple[Callable[[], float], Callable[[], object]]
"""What a forward calls for a factor, and what a loop does so that it is another one."""


class Slotted:
    __slots__ = ("gain", "step")

    def __init__(self) -> None:
        self.gain, self.step = 1.0, 0


class Private:
    _gain = 1.0

    @property
    def gain(self) -> float:
        return self._gain


class Scale:
    step = 0

    def __call__(self) -> float:
        return 1.0 + self.step


class Registry:
    known: dict[str, float] = {"gain": 1.0}  # noqa: RUF012 - what people write

    @classmethod
    def gain(cls) -> float:
        return cls.known["gain"]


def roads() -> Iterator[tuple[str, Road]]:
    """Yield what is changed, with the road to it."""
    os.environ["TOWER_GAIN"] = "1.0"
    yield "environment", (lambda: float(os.environ["TOWER_GAIN"]), lambda: os.environ.update(TOWER_GAIN="2.0"))
    loop_models.gain = 1.0  # type: ignore[attr-defined]
    yield "module", (lambda: loop_models.gain, lambda: setattr(loop_models, "gain", 2.0))  # type: ignore[attr-defined]

    def by_default(held: list[float] = [1.0]) -> float:  # noqa: B006
        return held[0]

    yield "default", (by_default, lambda: by_default.__defaults__[0].append(by_default.__defaults__[0].pop() + 1))  # type: ignore[index]

    def by_attribute() -> float:
        return by_attribute.gain  # type: ignore[attr-defined, no-any-return]

    by_attribute.gain = 1.0  # type: ignore[attr-defined]
    yield "function", (by_attribute, lambda: setattr(by_attribute, "gain", 2.0))
    nested = {"a": [(SimpleNamespace(gain=1.0),)]}
    yield "nested", (lambda: nested["a"][0][0].gain, lambda: setattr(nested["a"][0][0], "gain", 2.0))
    numbers, few, queue = np.ones(3), array("d", [1.0]), deque([1.0])
    yield "numpy", (lambda: float(numbers[1]), lambda: numbers.fill(2.0))
    yield "array", (lambda: few[0], lambda: few.append(few.pop(0) + 1))
    yield "deque", (lambda: queue[0], lambda: queue.appendleft(2.0))
    slotted, private, scale = Slotted(), Private(), Scale()
    yield "slot", (lambda: slotted.gain, lambda: setattr(slotted, "gain", 2.0))
    yield "property", (lambda: private.gain, lambda: setattr(private, "_gain", 2.0))
    yield "callable", (scale, lambda: setattr(scale, "step", 1))
    yield "registry", (Registry.gain, lambda: Registry.known.update(gain=2.0))
    given = {"gain": 1.0}
    yield "partial", (functools.partial(lambda held: held["gain"], given), lambda: given.update(gain=2.0))
    variable = contextvars.ContextVar("gain", default=1.0)
    yield "context", (lambda: variable.get(), lambda: variable.set(2.0))
    local = threading.local()
    local.gain = 1.0
    yield "thread", (lambda: local.gain, lambda: setattr(local, "gain", 2.0))
    held = [1.0]
    table = {"gain": lambda: held[0]}
    yield "table", (lambda: table["gain"](), lambda: held.__setitem__(0, 2.0))


def _changes(name: str, job: Job) -> None:
    gain, change = dict(roads())[name]
    train(job, ByLambda(gain), lambda model, step: change() if step == LATER else None)


for _name, _ in roads():
    _loop = functools.partial(_changes, _name)
    add_loop(UserLoop(f"changes_what_a_{_name}_holds", reached, _loop, "when the model was captured and is"))


@user_loop(reached)
def keeps_its_own_beside_what_a_forward_reads(job: Job) -> None:
    """Names that no forward reads, in whatever holds one that it reads."""
    slotted, known = Slotted(), SimpleNamespace(gain=1.0, seen=0)

    def note(model: Any, step: int) -> None:
        slotted.step, known.seen, known.extra, model.gain.note = step, step, [step], step
        os.environ["TOWER_STEP"] = str(step)

    train(job, ByLambda(lambda: slotted.gain * known.gain), note)


@user_loop(reached)
def replaces_settings_by_equal_ones(job: Job) -> None:
    held = {"gain": [1.0, 2.0]}

    def renew(model: Any, step: int) -> None:
        held["gain"] = [1.0, 2.0]

    train(job, ByLambda(lambda: held["gain"][0]), renew)


@user_loop(reached, refused="held around")
def changes_what_had_been_replaced_by_an_equal_one(job: Job) -> None:
    held = {"gain": [1.0, 2.0]}

    def renew(model: Any, step: int) -> None:
        if step == 1:
            held["gain"] = [1.0, 2.0]
        if step == LATER:
            held["gain"][0] = 2.0

    train(job, ByLambda(lambda: held["gain"][0]), renew)


shared = SimpleNamespace(count=0, draws=np.random.default_rng(0))


class CountsElsewhere(Tower):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared.count += 1
        return super().forward(x) * (1.0 + shared.count % 2)


@user_loop(reached, refused="changes count of shared")
def counts_in_a_global_object(job: Job) -> None:
    train(job, CountsElsewhere())


class DrawsElsewhere(Tower):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float(shared.draws.random())


@user_loop(reached, refused="draws of shared")
def draws_from_a_generator_in_a_global_object(job: Job) -> None:
    train(job, DrawsElsewhere())


@user_loop(reached, refused="gelu in the module")
def patches_a_function_of_torchs(job: Job) -> None:
    def patch(model: nn.Module, step: int) -> None:
        if step == LATER:
            F.gelu = F.relu

    train(job, Tower(), patch)


@user_loop(reached, refused="when the model was captured and")
def patches_a_class_of_torchs(job: Job) -> None:
    def patch(model: nn.Module, step: int) -> None:
        if step == LATER:
            nn.LayerNorm.forward = lambda self, x: x  # type: ignore[method-assign, assignment]

    train(job, Tower(), patch)


@user_loop(reached, refused="hooks on all modules .* have come or gone")
def hooks_all_modules_later(job: Job) -> None:
    def hook(model: nn.Module, step: int) -> None:
        if step == LATER:
            modules.register_module_forward_hook(lambda module, given, result: None)

    train(job, Tower(), hook)


@user_loop(reached, refused="pre-hooks or backward hooks on all modules")
def hooks_before_all_modules(job: Job) -> None:
    modules.register_module_forward_pre_hook(lambda module, given: None)
    train(job, Tower())


class WithoutGradients(Tower):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            known = self.layers[0](x)
            with torch.no_grad():
                known = self.layers[1](known)
        return self.head(self.layers[3](self.layers[2](known.clone())))


@user_loop(reached)
def infers_a_part(job: Job) -> None:
    train(job, WithoutGradients())


class Islands(Tower):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.layers[0](x)
            with torch.autocast("cpu", enabled=False):
                x = self.layers[1](x.float())
        return self.head(self.layers[2](x.float()))


@user_loop(reached)
def casts_but_for_an_island(job: Job) -> None:
    train(job, Islands())


class Aside(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.size = x.square().mean()
        return super().forward(x)


def _with_sizes(job: Job, *numbers: int) -> None:
    model: Any = Tower(4, Aside)
    batches = vectors(STEPS)
    job.start(model, lambda o, t: mse(o, t) + sum(0.1 * model.layers[i].size for i in numbers), *batches[0])
    for x, y in batches:
        job.step(x, y)


@user_loop(reached, refused=r"the loss reads size of the module 'layers\.0'")
def loses_by_what_first_layers_leave_on_themselves(job: Job) -> None:
    _with_sizes(job, 0, 1)


class Columns(Tower):
    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(WIDTH, 8) / 4
        self.left, self.right = nn.Parameter(whole[:, ::2]), nn.Parameter(whole[:, 1::2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + (x @ self.left).mean(1, keepdim=True)) + x @ self.right


@user_loop(reached)
def trains_columns_of_one_tensor(job: Job) -> None:
    train(job, Columns())
