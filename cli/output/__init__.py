"""What a person reads of a job: progress, promises, reports."""
