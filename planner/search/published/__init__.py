"""Rivals: other planners' algorithms, written from their papers, on the costs that all our planners share."""
