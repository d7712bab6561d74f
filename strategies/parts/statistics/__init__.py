"""What a method sums by class beside the deltas, one file a statistic."""
