"""Measurements that print one JSON object each: python -m bench.<name> --json."""
