"""One-factor comparisons of settings, and the search for good ones."""
