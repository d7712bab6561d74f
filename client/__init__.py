"""What an operator does from a program: submit, watch, read, fetch. Commands and notebooks stand on it."""
