"""Masks: key streams added to vectors and taken off their sum."""
