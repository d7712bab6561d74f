"""`chorale analysis`: jobs that describe records and train nothing."""
