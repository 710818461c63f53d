"""What people are told of a plan: why, what else, how fast, in words, tables and pictures."""
