"""Attacks through the states that silos train from, and what the product's rules leave of them."""
