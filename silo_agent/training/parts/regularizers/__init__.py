"""What is added to the loss, one file an idea."""
