"""Identity, fixed point, noise, masks and the session of the secure sum; no sockets, no clock."""
