"""Orders of small steps improved, and proved, by CP-SAT."""
