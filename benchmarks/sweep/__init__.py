"""Every configuration of one model on 64 devices priced: ``python -m benchmarks.sweep``."""
