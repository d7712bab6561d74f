"""The policy file: the last word of the institution on what may leave it."""
