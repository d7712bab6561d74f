"""The ledger: jobs, reveals and privacy budget, durable."""
