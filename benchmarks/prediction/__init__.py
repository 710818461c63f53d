"""Predicted against measured step times: ``python -m benchmarks.prediction``."""
