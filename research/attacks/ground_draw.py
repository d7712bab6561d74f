"""The draw of `fraction`, ground: whom an operator gets into one round by choosing the job's nonce.

A round of m silos is safe from floor(m/3) colluders among them. One that names the target and more of them
leaves the target's input alone in what the colluders know. Where the draw follows from the job's digest, the
operator tries nonces until a round suits. Where its seed holds what every silo drew by itself after the job
was signed, trying a nonce tells nothing of the draw (docs/protocol.md 3.2).
"""

# B = nonces of one block, R = silos of the job

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto import encoding
from crypto.errors import ConfigError
from crypto.session.cohort import (
    MAX_DRAW_RISK,
    SMALLEST_FEDERATION,
    default_colluders,
    draw_risk,
    drawn_count,
    smallest_draw,
)
from research.attacks.digits import NAMES, job
from simulation.engine import NO_NONCE

NONCES = 1_000_000
BLOCK = 10_000
NONCE_BYTES = 16
SEED_BYTES = 32  # of a self-mask seed, and of what a draw follows from
_MARK = b"\xff" * SEED_BYTES  # where a digest goes that differs from nonce to nonce
_FIELD_HEAD_BYTES = 5  # of bytes in the encoding: a tag and their length
RANK_BYTES = 8  # of a hash: two names of a round agree in them once in 10^16 rounds
Random = Callable[[int], bytes]
Seeds = Sequence[bytes]
Ranks = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundDraw:
    """A draw goes wrong where some round names more than floor(m/3) of the colluders.

    members: m, as the job asks for it, or else the smallest that silos accept. worst_risk: share of the
    nonces whose draw goes wrong, the larger of all and of those that the operator picks. picked: nonces
    whose draw, guessed with seeds that the operator makes up, goes wrong and names the target. promised_risk:
    what a silo's policy allows a job. asked_*: for m as the job asks for it, which silos refuse.
    asked_promise: the risk by which they do. tries_by_digest, seconds_by_digest: until a nonce suits where
    the draw follows from the job's digest; tries 0: none did.
    """

    silos: int
    colluders: int
    rounds: int
    nonces: int
    picked: int
    members: int
    worst_risk: float
    promised_risk: float
    asked_members: int
    asked_risk: float
    asked_risk_of_picked: float
    asked_promise: float
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
    number = default_colluders(silos) if colluders is None else colluders
    asked = drawn_count(silos, fraction)
    if not SMALLEST_FEDERATION <= asked <= silos:
        raise ConfigError(f"fraction: a round would name {asked} of {silos} silos, expected 3 to {silos}")
    if number >= silos:
        raise ConfigError(f"colluders: expected at most {silos - 1} of {silos} silos, got {number}")
    asked_promise = draw_risk(silos, asked, colluders=number, draws=rounds)
    members = asked
    if asked_promise > MAX_DRAW_RISK:
        members = smallest_draw(silos, colluders=number, draws=rounds, max_risk=MAX_DRAW_RISK) or silos
    tries, seconds, _ = ground_by_digest(silos, fraction, colluders=number, rounds=rounds, nonces=nonces)
    wrong_of_members, wrong_of_asked, picked = (np.zeros(nonces, np.bool_) for _ in range(3))
    for first in range(0, nonces, BLOCK):
        block = slice(first, min(first + BLOCK, nonces))
        jobs = [hashlib.sha256(nonce.to_bytes(NONCE_BYTES, "big")).digest() for nonce in range(nonces)[block]]
        guessed, drawn = (draw_seeds(jobs, silos, random) for _ in range(2))
        for round in range(1, rounds + 1):
            ranks_BR = ranks(drawn, NAMES[:silos], round)
            wrong_of_members[block] |= is_wrong(ranks_BR, members, colluders=number)
            wrong_of_asked[block] |= is_wrong(ranks_BR, asked, colluders=number)
            guess_BR = ranks(guessed, NAMES[:silos], round)
            picked[block] |= is_wrong(guess_BR, asked, colluders=number) & (guess_BR[:, number] < asked)
    return GroundDraw(
        silos=silos,
        colluders=number,
        rounds=rounds,
        nonces=nonces,
        picked=int(picked.sum()),
        members=members,
        worst_risk=max(_share(wrong_of_members), _share(wrong_of_members[picked])),
        promised_risk=float(MAX_DRAW_RISK),
        asked_members=asked,
        asked_risk=_share(wrong_of_asked),
        asked_risk_of_picked=_share(wrong_of_asked[picked]),
        asked_promise=float(asked_promise),
        tries_by_digest=tries,
        seconds_by_digest=seconds,
    )


def draw_seeds(jobs: Seeds, silos: int, random: Random) -> list[bytes]:
    """What each job's rounds are drawn by, with a self-mask seed of every silo that is new to each job.

    As crypto.session.cohort.draw_seed makes it: the encoding is the same for all but for the seeds.
    """
    head, tail = encoding.encode("draw", _MARK, [bytes(SEED_BYTES)] * silos).split(_MARK)
    field = tail[-SEED_BYTES - _FIELD_HEAD_BYTES :]
    fields_BR = np.tile(np.frombuffer(field, np.uint8), (len(jobs), silos, 1))
    drawn = np.frombuffer(random(len(jobs) * silos * SEED_BYTES), np.uint8)
    fields_BR[:, :, _FIELD_HEAD_BYTES:] = drawn.reshape(len(jobs), silos, SEED_BYTES)
    tail = tail[: -silos * len(field)]
    rows = zip(jobs, fields_BR, strict=True)
    return [hashlib.sha256(head + digest + tail + fields_R.tobytes()).digest() for digest, fields_R in rows]


def ranks(seeds: Seeds, names: Sequence[str], round: int) -> Ranks:
    """The place of every name in every draw of that round. Shapes: -> (B, R)."""
    marked = [encoding.encode("named-set", _MARK, round, name).split(_MARK) for name in names]
    sha256 = hashlib.sha256
    hashes = b"".join(
        [sha256(head + seed + tail).digest()[:RANK_BYTES] for seed in seeds for head, tail in marked]
    )
    hashes_BR = np.frombuffer(hashes, ">u8").reshape(len(seeds), len(names))
    return np.asarray(hashes_BR.argsort(axis=1).argsort(axis=1))


def is_wrong(ranks_BR: Ranks, members: int, *, colluders: int) -> Flags:
    """Whether more than floor(m/3) of the first names are among the m lowest."""
    return np.asarray((ranks_BR[:, :colluders] < members).sum(axis=1) > members // 3)


def ground_by_digest(
    silos: int, fraction: float, *, colluders: int, rounds: int, nonces: int
) -> tuple[int, float, frozenset[str]]:
    """Nonces and seconds until a round names the target and too many colluders, and whom it names.

    Names are ranked by a hash of the digests of job and roster, and of the round: the rule before the draw
    had a seed. 0 nonces: none of them does.
    """
    plain = job("fedavg", silos=silos, fraction=fraction, rounds=rounds, nonce=NO_NONCE).to_yaml()
    head, tail = plain.split(NO_NONCE.encode())
    names, members, started = NAMES[:silos], drawn_count(silos, fraction), time.monotonic()
    sha256, roster_digest = hashlib.sha256, bytes(32)
    for tried in range(1, nonces + 1):
        job_digest = sha256(head + tried.to_bytes(NONCE_BYTES, "big").hex().encode() + tail).digest()
        for round in range(1, rounds + 1):
            by = b"chorale/v1/named-set\0" + job_digest + roster_digest + round.to_bytes(8, "big")
            drawn = sorted((sha256(by + name.encode()).digest(), name) for name in names)[:members]
            named = frozenset(name for _, name in drawn)
            if names[colluders] in named and len(named & set(names[:colluders])) > members // 3:
                return tried, time.monotonic() - started, named
    return 0, time.monotonic() - started, frozenset()


def _share(flags: Flags) -> float:
    return float(flags.mean()) if flags.size else 0.0
