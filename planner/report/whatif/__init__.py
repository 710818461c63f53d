"""What would be otherwise: a plan under changes of its machines, schedule and times (``penstock whatif``)."""
