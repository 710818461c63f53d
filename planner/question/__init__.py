"""The question: the problem, the space of open choices, pins, and what targets take."""
