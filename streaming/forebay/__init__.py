"""Keeps GPUs full from live data: sources, stages, and a loader that resumes exactly."""
