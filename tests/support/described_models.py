"""Small models described from shapes, with their profiles: no torch, no GPU."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from costmodel.architectures.command import make
from costmodel.model.profile import Profile

LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512,
         "tie_word_embeddings": False}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 256}
MIXTRAL = {"model_type": "mixtral", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
           "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "num_local_experts": 4,
           "num_experts_per_tok": 2, "tie_word_embeddings": False}  # fmt: skip
WIDE_LLAMA = {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
              "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
SLOW_NETWORK = """format = "penstock-cluster"
version = 1
device = [{ name = "h100-sxm-80", catalogue = "h100-sxm-80" }]
host = [{ count = 2, device = "h100-sxm-80", devices = 4 }]
link = [
  { name = "host", group = 4, bandwidth_gbs = 370.0, latency_us = 7.0 },
  { name = "network", group = 0, bandwidth_gbs = 1.0, latency_us = 20.0, shared_gbs = 1.0 },
]
"""
"""A cluster file: two hosts of four devices, whose network is far slower than their own links."""


@cache
def described(name: str, device: str = "h100-sxm-80", sequence: int = 128) -> Profile:
    """Return the profile of ``llama``, ``gpt2`` or ``mixtral`` in small, or of ``wide llama``, of such samples."""
    config = {"llama": LLAMA, "gpt2": GPT2, "mixtral": MIXTRAL, "wide llama": WIDE_LLAMA}[name]
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.json"
        path.write_text(json.dumps(config))
        return make(str(path), device, (1, 2, 4), sequence=sequence)[0]
