"""torchtitan's own training loop on processors: its debug model of six layers, alone or under a plan of two stages.

    torchtitan_job.py alone|planned FOLDER

Prints the loss of each step as JSON, on the rank that has it. torchtitan 0.3.0 looks for an accelerator, and its
language models' attention needs one; so it is told that the device is the processor, and the attention is the one that
it keeps for other models. It hands micro-batches to ``step(arg_mbs=...)`` of torch's schedules, which torch 2.13.0 does
not have ("ValueError: Expecting 4 arg_mbs but got 2"): there they go to `_step_microbatches`, as `step` does. Nor has
that torch the ``torch.distributed.set_timeout`` that it calls behind the first step, so timeouts stay as they are.
Weights are drawn by name, and the data is random tokens.
"""

import inspect
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

SEQUENCE, BATCH, STEPS, VOCABULARY = 32, 8, 4, 2048
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}  # fmt: skip
"""torchtitan's debug model, as a configuration that is described."""
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


def planned_config(config: Any, folder: str) -> Any:
    """Return the configuration under a plan of two stages, of four layers and of two, that the first run finds."""
    from executor.adapters.torchtitan import find, planned
    from planner.front import model
    from planner.question.layer_pins import with_layers
    from planner.question.space import Space

    path = Path(folder) / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    space = Space(stages=2, data=1, tensor=1, recompute="none")
    space, pins = with_layers(model(str(path)).graph, "4,2", space, None)
    plan = find(str(path), 2, BATCH, space=space, pins=pins, microbatch_size=2, precision="bf16", folder=folder)
    return planned(config, plan)


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


def main(kind: str, folder: str) -> None:
    """Train for a few steps."""
    torch.set_num_threads(1)
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: CPU
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = lambda *_, **__: None
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    from torchtitan.tools.logging import init_logger

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
        """The same random tokens on every rank, in what size is asked for."""

        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            """Of nothing."""

        def __init__(self, *_: Any, local_batch_size: int, seq_len: int, **__: Any) -> None:
            self.size, self.sequence = local_batch_size, seq_len

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            generator = torch.Generator().manual_seed(0)
            while True:
                for tokens in torch.randint(VOCABULARY, (BATCH, self.sequence + 1), generator=generator).split(
                    self.size
                ):
                    places = torch.arange(self.sequence).expand(len(tokens), -1).contiguous()
                    yield {"input": tokens[:, :-1].contiguous(), "positions": places}, tokens[:, 1:].contiguous()

        def state_dict(self) -> dict[str, Any]:
            """Return nothing."""
            return {}

        def load_state_dict(self, _: dict[str, Any]) -> None:
            """Take nothing."""

    init_logger()
    config = llama3_debugmodel()
    config.model_spec = replace(config.model_spec, model=config.model_spec.model)
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.loss = CrossEntropyLoss.Config()
    config.tokenizer, config.dataloader, config.dump_folder = Words.Config(), RandomTokens.Config(), folder
    config.training.seq_len, config.training.steps, config.training.local_batch_size = SEQUENCE, STEPS, BATCH
    config.training.mixed_precision_param, config.training.disable_cuda_graphs = "float32", True
    config.activation_checkpoint, config.validator.enable, config.checkpoint.enable = None, False, False
    config.debug.enable_structured_logging = False
    if kind == "planned":
        config = planned_config(config, folder)
    trainer = config.build()
    if kind == "planned":
        take_microbatches(trainer.pp_schedule)
    for part in trainer.model_parts:
        for name, parameter in part.named_parameters():
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
            held_here = getattr(parameter, "to_local", lambda whole=parameter: whole)()  # FSDP over one rank holds all
            with torch.no_grad():
                held_here.copy_(1 + 0.02 * drawn if "norm" in name else 0.02 * drawn)
    losses: list[float] = []
    trainer.metrics_processor.log = lambda _, loss, *__, **___: losses.append(loss)
    held = [sorted({".".join(n.split(".")[:2]) if n.startswith("layers") else n.split(".")[0]
                    for n, _ in part.named_parameters()}) for part in trainer.model_parts]  # fmt: skip
    trainer.train()
    if kind == "alone" or trainer.pp_has_last_stage:
        print(json.dumps({"losses": losses, "held": held}), flush=True)
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
