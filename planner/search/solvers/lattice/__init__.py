"""A bound over all cuts of one family: the cheapest way through the lattice of downsets, weighted by flows."""
