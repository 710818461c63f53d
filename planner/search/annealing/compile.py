"""Compile the kernels, in a process of its own (`planner.search.annealing.readiness`)."""

from planner.search.annealing.kernels import compile_all

if __name__ == "__main__":
    compile_all()
