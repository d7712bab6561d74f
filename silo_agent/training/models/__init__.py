"""The networks that a job may name: a function a backbone, listed in registry.py."""
