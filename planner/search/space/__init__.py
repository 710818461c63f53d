"""What a search ranges over, as arrays: prices of divisions, even stages, families with their estimates."""
