"""Training in several processes, one a device: who starts them, what they are told, how they end."""
