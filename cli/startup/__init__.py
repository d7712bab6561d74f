"""What happens before a command runs."""
