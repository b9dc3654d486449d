"""Delta Lake tables for Forebay: a snapshot and its tail as a source, sinks and recordings."""
