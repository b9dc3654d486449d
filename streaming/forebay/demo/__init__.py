"""What demos have in common: a trainer to kill and resume, processes that end, and the tables."""
