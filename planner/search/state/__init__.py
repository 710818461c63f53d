"""What a search knows: the prepared question, the best plans by rung, the record of what each step found."""
