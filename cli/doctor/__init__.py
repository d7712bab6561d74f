"""`chorale doctor`: what is wrong at a party, and what repairs it."""
