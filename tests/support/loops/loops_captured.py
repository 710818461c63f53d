"""Loops about what was captured of a model: what a loop changes later, and what a capture cannot see."""

import itertools
import random
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.support.loops.loop_models import WIDTH, Block, Tower, mse, vectors
from tests.support.loops.user_loops import STEPS, Job, user_loop

captured = "captured"
LATER = STEPS // 2
"""The step before which a loop changes something."""

GAIN = 1.0
calls = 0


def train(job: Job, model: nn.Module, change: Any = lambda model, step: None, **options: Any) -> None:
    """Train on vectors; `change` is told of the model before each step."""
    batches = vectors(STEPS)
    job.start(model, mse, *batches[0], **options)
    for step, (x, y) in enumerate(batches):
        change(model, step)
        job.step(x, y)


@user_loop(captured)
def trains_plainly(job: Job) -> None:
    train(job, Tower())


@user_loop(captured)
def keeps_notes_on_the_model(job: Job) -> None:
    def note(model: Any, step: int) -> None:
        model.epoch, model.history = step // 2, [step]

    train(job, Tower(), note)


class Annealed(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / self.temperature


@user_loop(captured, refused="temperature")
def anneals_a_temperature(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        model.temperature = 1.0 + 0.5 * (step // 2)

    train(job, Annealed(), set_it)


class ByClass(Tower):
    temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / self.temperature


@user_loop(captured, refused="temperature")
def hides_a_classes_attribute(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.temperature = 2.0

    train(job, ByClass(), set_it)


@user_loop(captured, refused="temperature of the class ByClass")
def changes_a_classes_attribute(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            ByClass.temperature = 2.0

    train(job, ByClass(), set_it)


class ByGlobal(Tower):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * GAIN


@user_loop(captured, refused="GAIN")
def changes_a_global(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        global GAIN
        if step == LATER:
            GAIN = 1.5

    train(job, ByGlobal(), set_it)


class Configured(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(scale=1.0, name="tower")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.config.scale


@user_loop(captured, refused="scale of config of the model")
def changes_its_configuration(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.config.scale = 1.5

    train(job, Configured(), set_it)


class Listed(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.weights = [1.0, 1.0, 1.0, 1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, weight in zip(self.layers, self.weights, strict=True):
            x = x + weight * layer(x)
        return self.head(x)


@user_loop(captured, refused="weights of the model")
def changes_a_list(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.weights[2] = 0.5

    train(job, Listed(), set_it)


class ByLambda(Tower):
    def __init__(self, gain: Any) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.gain()


@user_loop(captured, refused="strength around")
def changes_a_variable_of_a_closure(job: Job) -> None:
    strength = 1.0

    def set_it(model: Any, step: int) -> None:
        nonlocal strength
        strength = 1.0 if step < LATER else 2.0

    train(job, ByLambda(lambda: strength), set_it)


class Dropping(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(super().forward(x))


@user_loop(captured, refused="p of the module 'drop'")
def raises_dropout(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.drop.p = 0.5

    train(job, Dropping(), set_it)


@user_loop(captured, refused="eps of the module 'layers.1.norm'")
def changes_a_norms_epsilon(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.layers[1].norm.eps = 0.1

    train(job, Tower(), set_it)


class WithTensor(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


@user_loop(captured, refused="scale of the model")
def replaces_a_plain_tensor(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.scale = torch.tensor(1.5)

    train(job, WithTensor(), set_it)


@user_loop(captured)
def fills_a_plain_tensor(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.scale.fill_(1.5)

    train(job, WithTensor(), set_it)


class WithBuffer(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


@user_loop(captured, refused="the buffer 'scale'")
def replaces_a_buffer(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.scale = torch.full((4,), 1.5)

    train(job, WithBuffer(), set_it)


@user_loop(captured)
def fills_a_buffer(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER and model.scale.numel():
            model.scale.fill_(1.5)

    train(job, WithBuffer(), set_it)


@user_loop(captured, refused="the module 'layers.2'")
def replaces_a_block(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.layers[2] = Block()

    train(job, Tower(), set_it)


@user_loop(captured, refused="the parameter 'head.weight'")
def replaces_a_parameter(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.head.weight = nn.Parameter(torch.zeros(4, WIDTH))

    train(job, Tower(), set_it)


@user_loop(captured, refused="forward of the module 'layers.1'")
def replaces_a_forward(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.layers[1].forward = lambda x: x

    train(job, Tower(), set_it)


@user_loop(captured, refused="the module 'layers.4'")
def grows_a_block(job: Job) -> None:
    def set_it(model: Any, step: int) -> None:
        if step == LATER:
            model.layers.append(Block())

    train(job, Tower(), set_it)


class Counting(Tower):
    """Warms up by its own count of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x) * min(1.0, self.count / 1000)


@user_loop(captured, refused="changes count of the model")
def counts_its_calls(job: Job) -> None:
    train(job, Counting())


class OnlyCounting(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x)


@user_loop(captured)
def counts_its_calls_for_itself(job: Job) -> None:
    train(job, OnlyCounting())


class CountingGlobally(Tower):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global calls
        calls += 1
        return super().forward(x) * (1.0 if calls % 2 else 0.5)


@user_loop(captured, refused="changes calls in the module")
def counts_globally(job: Job) -> None:
    train(job, CountingGlobally())


class Alternating(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.turns = itertools.count()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1.0 + next(self.turns) % 3)


@user_loop(captured, refused="turns of the model")
def takes_turns(job: Job) -> None:
    train(job, Alternating())


class Skipping(Tower):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if random.random() > 0.3:
                x = layer(x)
        return self.head(x)


@user_loop(captured, refused="Python's random")
def skips_layers_by_a_coin(job: Job) -> None:
    train(job, Skipping())


class Noisy(Tower):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import numpy as np

        return super().forward(x) * float(1.0 + 0.1 * np.random.rand())


@user_loop(captured, refused=r"numpy\.random")
def scales_by_numpys_random(job: Job) -> None:
    import numpy as np

    np.random.seed(0)
    train(job, Noisy())


class OwnGenerator(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1.0 if self.generator.random() > 0.5 else 0.5)


@user_loop(captured, refused="generator of the model")
def draws_from_a_generator_of_its_own(job: Job) -> None:
    train(job, OwnGenerator())


def _doubling(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
    return 2 * result


@user_loop(captured, refused="forward hooks that do not run")
def hooks_the_whole_model_at_first(job: Job) -> None:
    model = Tower()
    model.register_forward_hook(_doubling)
    train(job, model)


@user_loop(captured, refused="forward hooks that do not run")
def hooks_the_whole_model_later(job: Job) -> None:
    def hook(model: nn.Module, step: int) -> None:
        if step == LATER:
            model.register_forward_hook(_doubling)

    train(job, Tower(), hook)


@user_loop(captured)
def hooks_a_whole_layer_later(job: Job) -> None:
    def hook(model: Any, step: int) -> None:
        if step == LATER:
            model.layers[0].norm.register_forward_hook(_doubling)

    train(job, Tower(), hook)


@user_loop(captured)
def normalises_weights(job: Job) -> None:
    model = Tower()
    for layer in model.layers:
        nn.utils.parametrizations.weight_norm(layer.up)
        nn.utils.parametrizations.spectral_norm(layer.down)
    train(job, model)


@user_loop(captured)
def averages_weights_by_swapping_data(job: Job) -> None:
    def halve(model: nn.Module, step: int) -> None:
        if step == LATER:
            for parameter in model.parameters():
                parameter.data = parameter.data * 0.5

    train(job, Tower(), halve)


# What a batch is made of.


class Two(nn.Module):
    """Reads two inputs that are not alike, and settings among its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, batch: Any, scale: float = 1.0, *, sign: bool = False, extra: Any = None) -> torch.Tensor:
        x = torch.tanh(self.first(batch["a"])) * scale - self.second(batch["b"]).relu()
        if extra is not None:
            x = x + extra
        return self.head(-x if sign else x)


def pairs() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    return [(x, x.flip(1) * 0.5, y) for x, y in vectors(STEPS)]


@user_loop("batch")
def gives_a_dictionary_in_another_order(job: Job) -> None:
    rows = pairs()
    a, b, y = rows[0]
    job.start(Two(), mse, ({"a": a, "b": b},), y)
    for step, (a, b, y) in enumerate(rows):
        job.step(({"a": a, "b": b} if step < LATER else {"b": b, "a": a},), y)


@user_loop("batch", refused=r"input 0\['c'\]")
def gives_a_dictionary_of_other_names(job: Job) -> None:
    rows = pairs()
    a, b, y = rows[0]
    job.start(Two(), mse, ({"a": a, "b": b},), y)
    for step, (a, b, y) in enumerate(rows):
        job.step(({"a": a, "b": b} if step < LATER or job.is_plain else {"a": a, "c": b},), y)


@user_loop("batch", refused="input 1 is 2.0; the model was captured with 1.0")
def changes_a_number(job: Job) -> None:
    rows = pairs()
    a, b, y = rows[0]
    job.start(Two(), mse, ({"a": a, "b": b}, 1.0), y)
    for step, (a, b, y) in enumerate(rows):
        job.step(({"a": a, "b": b}, 1.0 if step < LATER else 2.0), y)


@user_loop("batch", refused="input 'sign' is True; the model was captured with False")
def changes_a_flag(job: Job) -> None:
    rows = pairs()
    a, b, y = rows[0]
    job.start(Two(), mse, {"batch": {"a": a, "b": b}, "sign": False}, y)
    for step, (a, b, y) in enumerate(rows):
        job.step({"batch": {"a": a, "b": b}, "sign": step >= LATER}, y)


@user_loop("batch", refused="input 'extra' is a tensor; the model was captured with None")
def gives_what_was_none(job: Job) -> None:
    rows = pairs()
    a, b, y = rows[0]
    job.start(Two(), mse, {"batch": {"a": a, "b": b}, "extra": None}, y)
    for step, (a, b, y) in enumerate(rows):
        job.step({"batch": {"a": a, "b": b}, "extra": None if step < LATER else b}, y)


@user_loop("batch", refused="None for the input .extra.")
def gives_none_for_what_was_there(job: Job) -> None:
    rows = pairs()
    a, b, y = rows[0]
    job.start(Two(), mse, {"batch": {"a": a, "b": b}, "extra": b}, y)
    for step, (a, b, y) in enumerate(rows):
        job.step({"batch": {"a": a, "b": b}, "extra": b if step < LATER else None}, y)


@user_loop("batch")
def gives_arguments_by_name_in_another_order(job: Job) -> None:
    rows = pairs()
    a, b, y = rows[0]
    job.start(Two(), mse, {"batch": {"a": a, "b": b}, "extra": b}, y)
    for step, (a, b, y) in enumerate(rows):
        given = {"batch": {"a": a, "b": b}, "extra": b}
        job.step(given if step < LATER else dict(reversed(given.items())), y)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (self.query(x) @ x.transpose(1, 2) + mask).softmax(-1) @ self.value(x)


def _sequences(length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    shape = STEPS, 8, length, WIDTH
    return list(zip(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator), strict=True))


def _with_mask(job: Job, length: int, **options: Any) -> None:
    rows, mask = _sequences(length), torch.full((length, length), -1e9).triu(1)
    x, y = rows[0]
    job.start(
        Masked(),
        mse,
        (x, mask),
        y,
        cut=lambda i, t, k, n: ((i[0][2 * k : 2 * k + 2], mask), t[2 * k : 2 * k + 2]),
        **options,
    )
    for x, y in rows:
        job.step((x, mask), y)


@user_loop("batch")
def masks_shorter_sequences(job: Job) -> None:
    _with_mask(job, 6)


@user_loop("batch", refused="split=")
def masks_sequences_as_long_as_the_batch(job: Job) -> None:
    _with_mask(job, 8, split={1: None} if job.is_plain else None)


@user_loop("batch")
def says_that_its_mask_goes_whole(job: Job) -> None:
    _with_mask(job, 8, split={1: None})


@user_loop("batch")
def asks_what_it_needs_and_leaves_out_the_rest(job: Job) -> None:
    rows = vectors(STEPS)
    job.start(Tower(), mse, *rows[0])
    for x, y in rows:
        if job.pipe is None:
            job.step(x, y)
            continue
        needed = job.pipe.inputs_needed
        job.step(x if 0 in needed else torch.randn_like(x) + job.rank, y if "targets" in needed else y + job.rank)


@user_loop("batch")
def gives_each_replica_its_rows_alone(job: Job) -> None:
    rows = vectors(STEPS)
    job.start(Tower(), mse, *rows[0], plan={"num_stages": 1, "ranks": [(0, 1)]})
    for x, y in rows:
        if job.pipe is not None:
            kept = torch.zeros(8, 1)
            for first, stop in job.pipe.inputs_needed[0]:
                kept[first:stop] = 1.0
            x, y = x * kept + (1 - kept) * job.rank, y * kept - (1 - kept)
        job.step(x, y)


@user_loop("batch")
def gives_zeros_for_what_it_does_not_read(job: Job) -> None:
    rows = vectors(STEPS)
    job.start(Tower(), mse, *rows[0])
    for x, y in rows:
        job.step(
            x if job.rank <= 0 else torch.zeros_like(x), y if job.rank else torch.zeros_like(y)
        ) if not job.is_plain else job.step(x, y)


@user_loop(captured)
def hooks_before_a_block(job: Job) -> None:
    """The hook of a block that a stage calls runs once: what it makes of the input is not its input again."""
    model = Tower()
    model.layers[0].register_forward_pre_hook(lambda _, given: (given[0] * 0.5,))
    train(job, model)


class Frozen(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.norm.running_mean.fill_(0.5)  # type: ignore[union-attr, operator]
        self.norm.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


@user_loop(captured)
def freezes_a_batch_norm_by_its_mode(job: Job) -> None:
    train(job, Frozen())


@user_loop(captured, refused="lies in the memory of")
def ties_weights_by_their_data(job: Job) -> None:
    model = Tower()
    model.layers[3].up.weight.data = model.layers[0].up.weight.data
    train(job, model)
