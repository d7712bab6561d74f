"""Logs, probes, traces."""
