"""The graph to cut: atoms, thinning, orders, layers."""
