"""Noise in whole numbers: its laws, its streams, and how far one input moves a sum."""
