"""One institution's own page, on loopback: what was asked and sent, budget, approve and reject."""
