"""What the mean delta does to the model, one file a server update."""
