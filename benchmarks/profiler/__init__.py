"""How good profiles are: ``python -m benchmarks.profiler``."""
