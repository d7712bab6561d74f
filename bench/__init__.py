"""Performance: one JSON object a program, python -m bench.<name> --json."""
