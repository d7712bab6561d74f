"""The coordinator: it drives rounds, relays what silos sign and sees sums alone. It runs no model code."""
