"""Seeds of shuffles and dropout: fresh at a silo, from names and the job's seed in a simulation.

The only place that seeds torch, and only inside a fork of its generators.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crypto import encoding

if TYPE_CHECKING:
    import torch


# torch holds its generator's lock while it makes the tensor of a state, and Python may collect garbage then:
# a finalizer that gives up the GIL to a thread which asks for the generator would never get it back
_STATES = threading.RLock()


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
def reseeding() -> Iterator[Callable[[int], None]]:
    """Give the body what seeds torch's CPU generator again, as for each sample that is transformed.

    The state from before comes back at the end. Transforms draw on the CPU, wherever their samples are.
    """
    import torch

    def reseed(seed: int) -> None:
        with _STATES:
            torch.default_generator.manual_seed(seed)

    with forked(()):
        yield reseed


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Run the body with torch's global generators seeded, the CPU's and that of a GPU that it computes on;
    module init and dropout take no generator.

    The state from before comes back at the end. No other GPU is looked at: that takes memory of it.
    """
    import torch

    gpus = [device.index] if device is not None and device.type == "cuda" else []
    with forked(gpus):
        with _STATES:
            # not torch.manual_seed, which keeps every call and its stack for a GPU that may yet come
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


@contextmanager
def forked(gpus: Sequence[int]) -> Iterator[None]:
    """As torch.random.fork_rng, one thread at a time. gpus: whose generators come back, too."""
    import torch

    fork = torch.random.fork_rng(devices=gpus)
    with _STATES:
        fork.__enter__()
    try:
        yield
    finally:
        with _STATES:
            fork.__exit__(None, None, None)
