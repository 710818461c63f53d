"""Operator graphs of known architectures, written down from their shapes: no torch, no weights, no device.

`describe` gives the graph and its facts, `estimate` a profile. Module and parameter names are those of Hugging Face
transformers 5. Leaves out: what a captured program would add (views, casts, masks).
"""
