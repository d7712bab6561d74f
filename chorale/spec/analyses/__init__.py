"""What an analysis computes beside its tables."""
