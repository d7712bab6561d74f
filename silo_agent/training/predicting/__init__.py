"""What a trained model says of rows and images that have no label."""
