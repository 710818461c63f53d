"""Forty models run with ``--check``: ``python -m benchmarks.checked_models``."""
