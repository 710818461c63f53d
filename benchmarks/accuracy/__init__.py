"""Predictions held against what others measured and published: ``python -m benchmarks.accuracy``."""
