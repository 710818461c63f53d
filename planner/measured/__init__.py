"""Jobs that somebody measured: predicted as plans are priced, and what their measurements say of our constants."""
