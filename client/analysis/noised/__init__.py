"""What noise leaves of published figures."""
