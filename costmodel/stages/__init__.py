"""What a stage costs: times and memory of any set of operators under any configuration."""
