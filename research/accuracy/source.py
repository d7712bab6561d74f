"""By which code and which arithmetic figures came about: what has to be equal for the same bits.

Chains of thousands of float32 steps differ in the end where one rounding does: with another processor's
kernels, another version of torch, or a commit that draws the first weights otherwise.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import torch

import silo_agent  # noqa: F401 - says how MKL rounds, and so which arithmetic the runs have

ROOT = Path(__file__).resolve().parents[2]


@cache
def here() -> str:
    """Commit and arithmetic, such as `4b2ef600 / 1f0c...`."""
    return f"{commit()} / {arithmetic()}"


def commit() -> str:
    """Of the clone that this file is in; `unknown` outside of one."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def arithmetic() -> str:
    """Of torch on this processor: SHA-256 of what a small training comes to, in 8 hex digits."""
    generator = np.random.default_rng(0)
    inputs, first, second = (
        torch.from_numpy(generator.standard_normal(shape, np.float32))
        for shape in ((32, 64), (64, 64), (64, 10))
    )
    labels = torch.arange(32) % 10
    weights = [first.requires_grad_(), second.requires_grad_()]
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(torch.relu(inputs @ first) @ second / 64, labels)
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data.sub_(gradient, alpha=0.3)
    digest = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights))
    return digest.hexdigest()[:8]
