"""Experiments on analyses: how often their intervals hold, and what linear programs find in their tables."""
