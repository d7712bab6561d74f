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
def seeded(seed: int) -> Iterator[None]:
    """Run the body with torch's global generators seeded; module init and dropout take no generator.

    The state from before comes back at the end, on the CPU and on every GPU.
    """
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        # not torch.manual_seed, which keeps every call and its stack for a GPU that may yet come
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        yield
