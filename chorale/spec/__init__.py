"""What people write down and everybody computes from: jobs, privacy, settings, the global state."""
