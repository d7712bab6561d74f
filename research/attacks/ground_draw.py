"""The draw of `fraction`, ground: whom an operator gets into one round by choosing the job's nonce.

A round of m silos is safe from floor(m/3) colluders among them. One that names the target and more of them
leaves the target's input alone in what the colluders know. Where the draw follows from the job's digest, the
operator tries nonces until a round suits. Where its seed holds what every silo drew by itself after the job
was signed, trying a nonce tells nothing (docs/protocol.md 3.2).
"""

# B = nonces of one block, R = silos of the job

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from crypto.session.cohort import SMALLEST_FEDERATION, drawn_count
from research.attacks.digits import NAMES, job

NONCES = 1_000_000
BLOCK = 10_000
RANK_BYTES = 8  # of a hash: two of a round's agree in them once in 10^16 rounds
SEED_BYTES = 32  # of a self-mask seed
CHOICES = 4  # openings of a job among which its draw could still be chosen
MAX_DRAW_RISK = 1e-6  # the default policy's
Random = Callable[[int], bytes]
Ranks = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundDraw:
    """colluders: silos that side with coordinator and operator. members: of a round, the fewest from what the
    job asks for that the promised risk allows.

    worst_risk: the share of nonces of which some round names the target and more than floor(members/3)
    colluders. asked_*: the same for the job as it asks, which a silo refuses, and the chance of it.
    tries_by_digest, seconds_by_digest: until a nonce suits, where the draw follows from the job's digest.
    """

    silos: int
    colluders: int
    rounds: int
    nonces: int
    members: int
    worst_risk: float
    promised_risk: float
    asked_members: int
    asked_risk: float
    asked_bound: float
    tries_by_digest: int
    seconds_by_digest: float


def measure(
    *,
    silos: int = 30,
    fraction: float = 0.1,
    colluders: int | None = None,
    rounds: int = 1,
    nonces: int = NONCES,
    random: Random = os.urandom,
) -> GroundDraw:
    """The first silos collude; the next is the target."""
    number = max(1, silos // 10) if colluders is None else colluders
    asked = drawn_count(silos, fraction)
    members = allowed_members(silos, asked, colluders=number, rounds=rounds)
    tries, seconds = ground_by_digest(silos, asked, colluders=number, rounds=rounds)
    bad = {members: 0, asked: 0}
    for first in range(0, nonces, BLOCK):
        block = min(BLOCK, nonces - first)
        seeds = [draw_seed(nonce.to_bytes(16, "big"), silos, random) for nonce in range(first, first + block)]
        is_bad = {size: np.zeros(block, np.bool_) for size in bad}
        for round in range(1, rounds + 1):
            ranks_BR = _ranks(seeds, NAMES[:silos], round)
            for size, is_bad_B in is_bad.items():
                is_bad_B |= names_too_many(ranks_BR, size, colluders=number)
        for size, is_bad_B in is_bad.items():
            bad[size] += int(is_bad_B.sum())
    return GroundDraw(
        silos=silos,
        colluders=number,
        rounds=rounds,
        nonces=nonces,
        members=members,
        worst_risk=bad[members] / nonces,
        promised_risk=MAX_DRAW_RISK,
        asked_members=asked,
        asked_risk=bad[asked] / nonces,
        asked_bound=float(draw_risk(silos, asked, colluders=number, rounds=rounds)),
        tries_by_digest=tries,
        seconds_by_digest=seconds,
    )
