"""Aceso's archive: measured operators, clusters, and configurations with what they took."""
