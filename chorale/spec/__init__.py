"""What people write and every party computes from: jobs, privacy, settings, the global state."""
