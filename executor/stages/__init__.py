"""The parts of the model that a rank runs, and how each is divided over ranks."""
