"""`chorale job`: what an operator does. The coordinator relays; silos decide."""
