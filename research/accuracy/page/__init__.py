"""What a suite has found, as docs/evidence.md says it: comparisons, tables and a picture."""
