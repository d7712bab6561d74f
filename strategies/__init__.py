"""Which quantities a method sums, and what the revealed sums do to the global state. No torch."""
