"""What a silo adds to the sums of an analysis: its table as the job describes it, and the cells of that."""
