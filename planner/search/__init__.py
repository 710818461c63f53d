"""How a plan is found: orders, segmentation, local search, CP-SAT in a child process, bounds."""
