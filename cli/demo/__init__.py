"""`chorale demo`: a federation of processes on this machine."""
