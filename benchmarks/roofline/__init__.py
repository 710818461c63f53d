"""Estimated against measured times of operators and steps: ``python -m benchmarks.roofline``."""
