"""What writes parts of this repository from its code."""
