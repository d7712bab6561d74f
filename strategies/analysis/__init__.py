"""Tables over all silos' records: what is summed for them, and which figures are published."""
