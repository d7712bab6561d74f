"""What may leave this institution: its policy, and the ledger of what left."""
