"""Files of other planners: Piper's, PipeDream's, and those of Tarnawski et al.'s dnn-partitioning."""
