"""One time-boxed call on a GPU machine: everything that Penstock must learn there, saved as it goes."""
