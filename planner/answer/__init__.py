"""Which of the plans that a search has found is the answer, and what is told with it."""
