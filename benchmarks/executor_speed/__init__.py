"""Our executor beside torch's pipelining: ``python -m benchmarks.executor_speed``."""
