"""Captures the executor's test models when it is imported: the ranks of a pool inherit them."""

import torch

from tests.executor_jobs import captured

torch.set_num_threads(1)
for model in ("small_mmt", "small_uno", "small_gpt", "tied_gpt", "two_branch", "gated", "frozen", "masked", "sequence_first", "normed"):
    captured(model)
