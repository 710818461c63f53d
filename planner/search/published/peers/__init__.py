"""Other planners' partition problems, solved under their own objectives."""
