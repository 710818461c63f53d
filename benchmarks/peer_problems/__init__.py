"""Other planners' instances: cut under their own objectives, read as profiles, held against what they measured."""
