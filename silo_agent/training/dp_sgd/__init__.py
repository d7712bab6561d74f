"""What a silo does to keep a job's promise of privacy."""
