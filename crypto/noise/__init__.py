"""Noise in whole numbers: its laws, its streams, and how much of it a quantity carries."""
