"""Files of a job that stay at the silo: local state and personal models."""
