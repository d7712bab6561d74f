"""What a silo minimizes, one file an idea."""
