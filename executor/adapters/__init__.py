"""A plan as other trainers' own objects, made in their scripts: a module a trainer, on its public surface.

Each begins with the version that it was tried with, and imports its trainer alone, where it is used. What a trainer
does not take of a plan is refused (`costmodel.errors.DoesNotMatch`). Leaves out files (`planner.export`).
"""
