"""The model as torch code: one capture of its graph, for the profiler and the executor.

The executor imports torch code of the cost model from here alone.
"""
