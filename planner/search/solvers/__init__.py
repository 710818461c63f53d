"""Kernels and models that proposers and bounders run: CP-SAT, the lattice, annealing, relaxations of cuts."""
