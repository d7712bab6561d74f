"""Accuracy with controls: every method and its control on the same cuts, paired by seed.

`python -m research.accuracy --suite small` tunes each method's learning rate on a part of the training data,
then trains it with every seed on every cut and tests the global model on samples that no silo trains on.
"""
