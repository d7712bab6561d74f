"""What a silo does after the last round, one file a step."""
