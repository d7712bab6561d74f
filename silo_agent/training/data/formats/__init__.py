"""What each data format reads: one file a format."""
