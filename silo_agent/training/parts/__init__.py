"""How a silo computes what strategies/parts/ declares; registry.py says which computes which."""
