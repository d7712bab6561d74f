"""DP-SGD: clipped gradients of single records, and noise on their sum."""
