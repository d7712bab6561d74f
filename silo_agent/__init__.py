"""The silo's side: policy, ledger, data, rounds, connection, training. Its policy decides what leaves."""

import os

# MKL rounds a sample by its place in the batch unless this is set before its first call; private jobs need
# it (training/dp_sgd/checks.py looks whether it helped)
os.environ.setdefault("MKL_CBWR", "AUTO")
