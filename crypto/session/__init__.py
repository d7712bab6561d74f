"""One session of docs/protocol.md 5: its messages, keys and shares, and the two state machines."""
