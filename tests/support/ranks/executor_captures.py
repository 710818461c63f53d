"""Captures the executor's test models when it is imported: the ranks of a pool inherit them."""

from importlib.util import find_spec

import torch

from tests.support.random_training import NUM_MODELS, captured_random
from tests.support.ranks.executor_jobs import captured

torch.set_num_threads(1)
MODELS = "small_mmt small_uno small_gpt tied_gpt two_branch gated frozen masked sequence_first normed"
MODELS += " scaled recommender unet detector experts dropped dropped_plainly two_towers exact_gpt"
MODELS += " gpt2 llama exact_llama" if find_spec("transformers") else ""

for model in MODELS.split():
    captured(model)
for seed in range(NUM_MODELS):
    captured_random(seed)
