"""The noise of each quantity, what releases cost, and the plan of a whole job."""
