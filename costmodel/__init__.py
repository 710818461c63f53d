"""What things cost: operator graph, profile, cluster, strategies, memory and communication.

Imports nothing of the other packages; torch is imported only in `costmodel.profiling` and in the
zoo's torch modules.
"""
