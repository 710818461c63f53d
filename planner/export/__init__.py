"""Plans as files that other trainers take, and plans made from theirs.

One module a form. Whether a form takes a plan is asked of the rules that a plan's `runs_on` is made by
(`planner.question.pipeline_support`).
"""
