"""Training with torch: the only place of the agent that imports it."""
