"""The user's model and loss: what of them a rank holds, calls and leaves alone."""
