"""A family of cuts as numbers, which both CP-SAT and bounds in closed form solve."""
