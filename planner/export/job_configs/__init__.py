"""Jobs as they are run today: trainers' own configurations as plans, and the tables of keys that exporters write by.

A table of keys a trainer (CSV): what each key carries, or why it is ignored.
"""
