"""Real values as words of Z(2^w): quantities, layout, clipping, rounding and projection."""
