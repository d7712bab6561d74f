"""This machine, as training uses it: devices, seeds, and what is installed."""
