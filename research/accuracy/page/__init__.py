"""What a suite has found, as docs/evidence.md says it: comparisons, tables, sentences and a picture."""
