"""Identity, signed documents and the additive-mask secure sum, without sockets, clocks or event loops."""
