"""Chorale's own networks."""
