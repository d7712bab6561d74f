"""Training with torch: models, the loop, DP-SGD, and what computes each part of a method."""
