"""What proves how good a plan can be: bounds of families, of cuts, and proofs."""
