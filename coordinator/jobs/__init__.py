"""Jobs from submission to end: phases, attempts, deadlines, sums."""
