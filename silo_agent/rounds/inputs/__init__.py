"""What this silo contributes to phases: data that are open, and inputs that are computed once."""
