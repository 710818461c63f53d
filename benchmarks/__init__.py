"""Measurements behind every figure that the README and the docs quote; each is `python -m benchmarks.NAME`."""
