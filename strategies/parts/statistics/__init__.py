"""What a method sums by class with the deltas, one file a statistic."""
