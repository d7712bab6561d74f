"""What a recipe chooses from: each part is declared here once; strategies/registry.py lists them."""
