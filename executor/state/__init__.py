"""Batches that come in, and states that are saved and loaded."""
