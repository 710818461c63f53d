"""Gradients from the backwards to the step: sums, norms, losses, the optimizer."""
