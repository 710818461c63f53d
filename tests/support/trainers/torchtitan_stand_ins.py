"""What torchtitan 0.3.0's training loop asks for on processors, and a job of a few steps in it, of random tokens.

torchtitan looks for an accelerator; so it is told that the device is the processor, before it is imported: import this
first. It hands micro-batches to ``step(arg_mbs=...)`` of torch's schedules, which torch 2.13.0 does not have
("ValueError: Expecting 4 arg_mbs but got 2"): there they go to `_step_microbatches`, as `step` does. Nor has that torch
the ``torch.distributed.set_timeout`` that it calls behind the first step, so timeouts stay as they are.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

SEQUENCE, BATCH, STEPS, VOCABULARY = 32, 8, 4, 2048
CPU = SimpleNamespace(
    set_device=lambda _: None,
    synchronize=lambda: None,
    device_count=lambda: 1,
    current_device=lambda: 0,
    get_device_name=lambda _: "cpu",
    get_device_properties=lambda _: SimpleNamespace(total_memory=2**30),
    reset_peak_memory_stats=lambda: None,
    empty_cache=lambda: None,
    memory_stats=lambda _: {},
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    manual_seed=torch.manual_seed,
)
torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda _: CPU
if not hasattr(torch.distributed, "set_timeout"):
    torch.distributed.set_timeout = lambda *_, **__: None

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.tools.logging import init_logger  # noqa: E402


class Words(BaseTokenizer):
    """A tokenizer that nobody asks."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        """Return nothing."""
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        """Return nothing."""
        return ""

    def get_vocab_size(self) -> int:
        """Return the model's."""
        return VOCABULARY

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Of nothing."""


class RandomTokens(BaseDataLoader):
    """The same random tokens on every rank, a batch a step, in what size is asked for."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Of nothing that matters to it."""

        infinite: bool = True

    def __init__(self, *_: Any, local_batch_size: int, seq_len: int, **__: Any) -> None:
        self.size, self.sequence, self.taken = local_batch_size, seq_len, 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            batch, place = divmod(self.taken * self.size, BATCH)
            generator = torch.Generator().manual_seed(batch)
            drawn = torch.randint(VOCABULARY, (BATCH, self.sequence + 1), generator=generator)
            for tokens in drawn[place:].split(self.size):
                self.taken += 1
                places = torch.arange(self.sequence).expand(len(tokens), -1).contiguous()
                yield {"input": tokens[:, :-1].contiguous(), "positions": places}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        """Return how much was taken."""
        return {"taken": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on behind that."""
        self.taken = state_dict["taken"]


def take_microbatches(schedule: Any) -> None:
    """Let a schedule of torch 2.13.0 take micro-batches that are divided already, as later ones do."""
    if "arg_mbs" in inspect.signature(schedule.step).parameters:
        return

    def step(*, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, losses: Any, loss_kwargs: Any, **options: Any) -> None:
        for stage in schedule._stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        schedule._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, loss_kwargs=loss_kwargs, **options)

    schedule.step = step


def small_job(config: Any, folder: str) -> Any:
    """Return a configuration of a few steps over random tokens, in float32, without anything beside training."""
    init_logger()
    torch.set_num_threads(1)
    config.loss = CrossEntropyLoss.Config()
    config.tokenizer, config.dataloader, config.dump_folder = Words.Config(), RandomTokens.Config(), folder
    config.training.seq_len, config.training.steps, config.training.local_batch_size = SEQUENCE, STEPS, BATCH
    config.training.mixed_precision_param, config.training.disable_cuda_graphs = "float32", True
    config.activation_checkpoint, config.validator.enable, config.checkpoint.enable = None, False, False
    config.debug.enable_structured_logging = False
    return config


def trained(trainer: Any) -> dict[str, Any]:
    """Train, and return the loss and the gradients' norm of each step, where they are known, and what is held here."""
    losses: list[float] = []
    norms: list[float] = []

    def log(_: int, loss: float, __: float, norm: float, **___: Any) -> None:
        losses.append(loss)
        norms.append(norm)

    trainer.metrics_processor.log = log
    held = [sorted(name for name, _ in part.named_parameters()) for part in trainer.model_parts]
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()
    return {"losses": losses, "norms": norms, "held": held}
