"""`chorale authority`: the offline party that says who is in the federation. Source: docs/protocol.md 1."""
