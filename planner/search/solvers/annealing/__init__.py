"""Annealing of cuts by a compiled value."""
