"""Parsers of foreign bytes, fuzzed by coverage: `make fuzz`. CONTRIBUTING.md says how to add a target."""
