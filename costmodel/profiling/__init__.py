"""Measuring a torch model: capture of its graph, runnable parts of it, times in context, links.

The only part of `costmodel` that imports torch (with the zoo's torch modules). Everything here runs
with torch, what torch itself requires and the standard library alone.
"""
