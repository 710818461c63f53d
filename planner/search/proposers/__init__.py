"""What proposes plans to a search."""
