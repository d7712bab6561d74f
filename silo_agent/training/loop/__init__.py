"""The steps of local training: batches, the optimizer, DP-SGD where a job asks for it."""
