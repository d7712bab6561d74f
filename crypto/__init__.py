"""Identity, fixed point, noise, masks and the session of the secure sum, without sockets, clocks or event
loops."""
