"""What a recipe chooses from: each part is declared here once; strategies/declared_parts.py lists them."""
