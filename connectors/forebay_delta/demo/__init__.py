"""The demo: a table that is appended to, updated and compacted while a model trains on it."""
