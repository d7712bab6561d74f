"""What a file of an image says, by kind, and what it is called."""
