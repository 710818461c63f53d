"""Packing of samples of unlike lengths: what it gains by the simulator, and on two ranks."""
