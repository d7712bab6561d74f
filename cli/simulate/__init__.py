"""`chorale simulate`: a job in one process."""
