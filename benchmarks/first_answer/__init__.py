"""What a plan is like after seconds: ``python -m benchmarks.first_answer``."""
