"""Seeded schedules of faults over a federation of real processes, and what must hold after any of them."""
