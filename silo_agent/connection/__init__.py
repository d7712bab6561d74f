"""The line to the coordinator: control stream, transfers, waiting before the next try."""
