"""Attacks on what leaves a silo, measured on real data: each with its protection and without."""
