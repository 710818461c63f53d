"""What a schedule takes: actions, schedules, validation, lowering, engine, timeline, bounds, charts.

`simulator.actions`, `.schedule` and `.timeline` need the standard library alone: the executor imports them.
"""
