"""What to do: partition search, plan file, checker, baselines, report and the command line.

`planner.plan` and `planner.checker` need the standard library alone; ortools stays in `planner.search`.
"""
