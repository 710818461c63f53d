"""What several benchmarks stand on; nothing here is a command."""
