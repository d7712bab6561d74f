"""Experiments on methods and attacks. No program imports it."""
