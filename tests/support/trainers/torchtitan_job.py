"""torchtitan's own training loop on processors: its debug model of six layers, alone or under a plan of two stages.

    torchtitan_job.py alone|planned FOLDER

Prints the loss of each step as JSON, on the rank that has it. Language models' attention needs an accelerator in
torchtitan 0.3.0; so theirs is the one that it keeps for other models. Weights are drawn by name.
"""

import json
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.support.trainers.torchtitan_stand_ins import BATCH, VOCABULARY, small_job, take_microbatches, trained

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}  # fmt: skip
"""torchtitan's debug model, as a configuration that is described."""


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


def main(kind: str, folder: str) -> None:
    """Train for a few steps."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = small_job(llama3_debugmodel(), folder)
    config.model_spec = replace(config.model_spec, model=config.model_spec.model)
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    trainer = (planned_config(config, folder) if kind == "planned" else config).build()
    if kind == "planned":
        take_microbatches(trainer.pp_schedule)
    for part in trainer.model_parts:
        for name, parameter in part.named_parameters():
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
            held_here = getattr(parameter, "to_local", lambda whole=parameter: whole)()  # FSDP over one rank holds all
            with torch.no_grad():
                held_here.copy_(1 + 0.02 * drawn if "norm" in name else 0.02 * drawn)
    found = trained(trainer)
    if kind == "alone" or trainer.pp_has_last_stage:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
