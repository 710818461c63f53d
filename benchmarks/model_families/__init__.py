"""Configurations that nobody ran, captured and planned: ``python -m benchmarks.model_families``."""
