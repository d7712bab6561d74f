"""The steps of local training: batches and the optimizer."""
