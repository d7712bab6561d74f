"""Masks, key streams and whole sums without wire or processes, and the memory that they take."""
