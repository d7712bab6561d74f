"""Logs, traces, probes, and the health check of a container."""
