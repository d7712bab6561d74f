"""A job's report, a file of its own."""
