"""What only a GPU can answer: profiles of real models, and predictions held against runs."""
