"""What follows the last round, one file a step."""
