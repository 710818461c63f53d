"""Process groups, messages between stages, and the watch over other ranks."""
