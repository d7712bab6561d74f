"""One silo in a round: check, compute, join the session, answer."""
