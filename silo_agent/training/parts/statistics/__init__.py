"""What a silo sums by class, one file a statistic."""
