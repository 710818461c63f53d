"""The model as data: operator graph, what each operator does and costs, and its profile file."""
