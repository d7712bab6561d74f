"""Processes that a benchmark starts, and the files that they read."""
