"""Seeds of shuffles and dropout: fresh at a silo, from names and the job's seed in a simulation.

The only place that seeds torch, and only inside a fork of its generators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crypto import encoding

if TYPE_CHECKING:
    import torch


def derive_seed(purpose: str, *parts: str | int) -> int:
    """63 bits of SHA-256 over purpose and parts: torch and numpy both take them."""
    hashed = encoding.digest("seed", purpose, *parts)
    return int.from_bytes(hashed[:8], "big") >> 1


def fresh_seed(random: Callable[[int], bytes] = os.urandom) -> int:
    """63 bits of the system's CSPRNG.

    Security: a job's operator who knew the order of the batches could choose weights for it.
    """
    return int.from_bytes(random(8)) >> 1


def training_seed(*, job_seed: int, silo: str, round: int) -> int:
    """What a simulated silo's shuffles and dropout in one round follow from, so that it can be repeated."""
    return derive_seed("training", job_seed, silo, round)


def shuffler(seed: int) -> torch.Generator:
    """A CPU generator of its own for permutations."""
    import torch

    return torch.Generator().manual_seed(seed)


@contextmanager
def reseeding() -> Iterator[Callable[[int], object]]:
    """Give the body what seeds torch's CPU generator again, as for each sample that is transformed.

    The state from before comes back at the end. Transforms draw on the CPU, wherever their samples are.
    """
    import torch

    with torch.random.fork_rng(devices=()):
        yield torch.default_generator.manual_seed


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Run the body with torch's global generators seeded, the CPU's and that of a GPU that it computes on;
    module init and dropout take no generator.

    The state from before comes back at the end. No other GPU is looked at: that takes memory of it.
    """
    import torch

    gpus = [device.index] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        # not torch.manual_seed, which keeps every call and its stack for a GPU that may yet come
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield
