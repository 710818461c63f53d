"""Captures the model of `unlike_jobs` when it is imported: ranks inherit it."""

import torch

from tests.support.ranks.unlike_jobs import captured

torch.set_num_threads(1)
for free in (True, False):
    captured(free)
