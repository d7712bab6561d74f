"""What a model is trained for: what a task sums over the silos' hold-outs, and what the sums say."""
