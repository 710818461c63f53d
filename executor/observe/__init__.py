"""What a step took and whether it was right: recordings, measurements, the check."""
