"""Described models beside captured ones: parameters, operations, step prices and kept bytes of the same configuration.

    python -m benchmarks.described [--only REGEX]

Each configuration of `SHAPES` (real widths, two layers) is made by both sources of `penstock model` for one H100, one
sample, and priced as one stage of Megatron-LM in bf16 under each of `DEGREES`. A row is one of these: step (F, I and
W) and kept bytes of captured over described. Leaves out which of the two is right.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from costmodel.architectures.command import make
from costmodel.machines.typical import typical_cluster
from costmodel.model.profile import Profile
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob

DEVICE, RANKS = "h100-sxm-80", 8
DEGREES = {
    "one device": StageConfig(), "tensor 2": StageConfig(tensor=2), "tensor 8": StageConfig(tensor=8),
    "tensor 2, sequence": StageConfig(tensor=2, sequence=2), "tensor 8, sequence": StageConfig(tensor=8, sequence=8),
    "context 2": StageConfig(context=2), "expert 8": StageConfig(data=8, expert=8),
}  # fmt: skip
TEXT: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 32000, "max_position_embeddings": 4096}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**TEXT, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
              "num_key_value_heads": 8},
    "qwen3": {**TEXT, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
              "num_key_value_heads": 8, "head_dim": 128},
    "mixtral": {**TEXT, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v3": {**TEXT, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
                    "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 64,
                    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 8,
                    "topk_group": 4, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                    "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 0},
    "gpt_oss": {**TEXT, "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
                "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
                "sliding_window": 128},
    "gpt2": {"n_embd": 1600, "n_layer": 2, "n_head": 32, "n_positions": 1024, "vocab_size": 50304},
    "vit": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 16,
            "image_size": 224, "patch_size": 16},
}  # fmt: skip


def both(model_type: str) -> tuple[Profile, Profile]:
    """Return the described and the captured profile of a shape."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps({"model_type": model_type, **SHAPES[model_type]}))
        described, captured = (make(str(path), DEVICE, (1,), source=source)[0] for source in ("described", "captured"))
    return described, captured


def price(profile: Profile, config: StageConfig) -> tuple[int, int]:
    """Return a step's nanoseconds and the bytes that a micro-batch keeps, of the whole model as one stage."""
    model = StrategyModel(profile, typical_cluster(DEVICE, RANKS), 1, TrainingJob.of("megatron", "bf16", "adam"))
    ranks = range(config.data * config.tensor * config.context)
    cost = model.stage(range(len(profile.graph.operators)), config, ranks)
    return _int(cost.forward_ns) + _int(cost.whole_backward_ns), _int(cost.activation_bytes)


def _int(amount: Any) -> int:
    return int(amount if isinstance(amount, int) else amount[0])


def rows(model_type: str) -> Iterator[str]:
    """Yield a line for the counts and one for each of the degrees."""
    found = both(model_type)
    counts = [sum(o.flop for o in p.graph.operators) for p in found]
    bytes_ = [sum(parameter.size_bytes for parameter in p.graph.parameters) for p in found]
    yield f"{model_type:12} operations {counts[1] / counts[0] - 1:+.2%}, parameters' bytes {bytes_[1] - bytes_[0]:+d}"
    for name, config in DEGREES.items():
        if "expert" in name and not any(o.work and o.work.experts for o in found[0].graph.operators):
            continue
        (step, kept), (other, held) = (price(profile, config) for profile in found)
        yield (
            f"{model_type:12} {name:20} step {step / 1e6:8.3f} ms {other / step - 1:+6.1%}   "
            f"kept {kept / 2**20:8.1f} MiB {held / kept - 1:+6.1%}"
        )


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.described",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="REGEX")
    for model_type in (name for name in SHAPES if re.search(parser.parse_args().only, name)):
        for line in rows(model_type):
            print(line, flush=True)


if __name__ == "__main__":
    main()
