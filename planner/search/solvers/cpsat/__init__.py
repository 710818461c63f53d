"""CP-SAT chooses the cut: `data` says what is cut, `variables`, `constraints` and `objectives` make the model.

`solver` runs in a child process (`python -m planner.search.solvers.cpsat.solver`), started by `child`.
"""
