"""Measuring: times, memory, ratios and shards of a captured model, and the profile that they make."""
