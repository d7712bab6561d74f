"""The draw of a job's rounds: nobody chooses it, and how often it names too many colluders."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from crypto.errors import LocalProtocolError
from crypto.session.cohort import (
    DRAW_CHOICES,
    draw_risk,
    draw_seed,
    drawn_count,
    fraction_for,
    group_fractions,
    named_set,
    smallest_draw,
)

SILOS = tuple(f"clinic-{place}" for place in range(6))
COLLUDERS = SILOS[4:]
DRAWN = 3
NONCES = 1_000_000
BLOCK = 50_000
SEEDS = {name: hashlib.sha256(name.encode()).digest() for name in SILOS}


def drawn(seed: bytes, *, round: int = 1, on_roster: Sequence[str] = SILOS) -> tuple[str, ...]:
    return named_set(SILOS, on_roster=on_roster, round=round, fraction=0.5, draw_seed=seed)


def test_every_self_mask_seed_decides_the_draw_and_their_order_does_not() -> None:
    seed = draw_seed(bytes(32), SEEDS)
    assert seed == draw_seed(bytes(32), dict(reversed(SEEDS.items())))
    others = {draw_seed(bytes(32), {**SEEDS, name: bytes(32)}) for name in SILOS}
    others |= {draw_seed(b"\1" * 32, SEEDS), draw_seed(bytes(32), {"clinic-0": SEEDS["clinic-0"]})}
    assert len(others - {seed}) == len(SILOS) + 2


def test_a_draw_without_its_seed_is_refused_and_full_participation_needs_none() -> None:
    with pytest.raises(LocalProtocolError, match="a draw needs the job's draw seed"):
        named_set(SILOS, on_roster=SILOS, round=1, fraction=0.5)
    assert named_set(SILOS, on_roster=SILOS, round=1) == SILOS
    assert named_set(SILOS, on_roster=SILOS, round=1, fraction=0.9) == SILOS  # ceil(5.4)


def test_a_roster_moves_no_silo_that_stays_out_of_a_draw() -> None:
    """The roster's digest was in the hash: an authority or operator could sign until it suited."""
    seed = draw_seed(bytes(32), SEEDS)
    for round in range(1, 20):
        named = drawn(seed, round=round)
        for gone in set(SILOS) - set(named):
            assert drawn(seed, round=round, on_roster=[name for name in SILOS if name != gone]) == named


def group(round: int, *, on_roster: Sequence[str] = SILOS, seed: bytes = bytes(32)) -> tuple[str, ...]:
    return named_set(SILOS, on_roster=on_roster, round=round, fraction=0.5, draw_seed=seed, by_groups=True)


def test_groups_are_drawn_once_share_nobody_and_take_turns() -> None:
    one, other = group(1), group(2)
    assert sorted([*one, *other]) == sorted(SILOS)
    assert [group(round) for round in range(3, 9)] == [one, other] * 3
    seeds = [hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(400)]
    assert len({group(1, seed=seed) for seed in seeds}) == math.comb(6, 3)


def test_a_silo_that_leaves_the_roster_moves_nobody_into_another_group() -> None:
    """Then sums over groups as they were and as they are would show whom they moved."""
    for gone in SILOS:
        stay = [name for name in SILOS if name != gone]
        for round in (1, 2):
            assert group(round, on_roster=stay) == tuple(name for name in group(round) if name != gone)


def test_fractions_that_divide_are_told_as_they_are_written() -> None:
    assert group_fractions(20) == [0.2, 0.25, 0.5]
    assert group_fractions(1000)[:3] == [0.004, 0.005, 0.008]
    assert group_fractions(7) == []
    assert all(60 % drawn_count(60, each) == 0 for each in group_fractions(60))


def test_no_silo_is_drawn_more_often_than_another() -> None:
    """2000 seeds; alarm at 6 standard deviations, falsely once in 8e7 runs over six silos."""
    seeds = [hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(2000)]
    counts = [sum(name in drawn(seed) for seed in seeds) for name in SILOS]
    assert all(abs(count - 1000) < 6 * math.sqrt(500) for count in counts)


@pytest.mark.soak
def test_a_million_ground_nonces_do_no_better_than_one() -> None:
    """The operator knows every b but that of one honest silo, for which it has a guess, and tries nonces. It
    keeps those whose draw names both colluders, which is one too many, by its guess: of the true draws of
    the kept ones no more do than of all. Alarm at 6 standard deviations, falsely once in 1e9 runs."""
    guess = {**SEEDS, "clinic-0": bytes(32)}
    nonces = [hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range(NONCES)]
    kept = [nonce for nonce, is_bad in zip(nonces, has_too_many(nonces, guess), strict=True) if is_bad]
    chance = draw_risk(6, DRAWN, colluders=2, draws=1) / DRAW_CHOICES
    assert chance == Fraction(1, 5)
    assert abs(len(kept) / NONCES - chance) < 6 * math.sqrt(0.16 / NONCES)
    bad = has_too_many(kept, SEEDS)
    assert abs(np.mean(bad) - chance) < 6 * math.sqrt(0.16 / len(kept))
    # control: who knew all of it before the job is signed could choose, as by a draw of digests alone
    assert all(has_too_many(kept, guess))
    for nonce, is_bad in zip(kept[:200], bad[:200], strict=True):  # what is counted is the rule itself
        assert (set(COLLUDERS) <= set(drawn(draw_seed(nonce, SEEDS)))) == is_bad


def has_too_many(job_digests: Sequence[bytes], seeds: dict[str, bytes]) -> Any:
    """Whether round 1 names both colluders, for each job. Shapes: (N,) bool."""
    mixed = b"b" + (32).to_bytes(4, "big")
    end = b"l" + len(SILOS).to_bytes(4, "big") + b"".join(mixed + seeds[name] for name in SILOS)
    draw = b"chorale/v1/draw\0" + (2).to_bytes(4, "big") + mixed
    head = b"chorale/v1/named-set\0" + (3).to_bytes(4, "big") + mixed
    round = b"i" + (1).to_bytes(8, "big")
    tails = [round + b"s" + len(name).to_bytes(4, "big") + name.encode() for name in SILOS]
    sha256, found = hashlib.sha256, []
    for first in range(0, len(job_digests), BLOCK):
        made = [sha256(draw + job_digest + end).digest() for job_digest in job_digests[first : first + BLOCK]]
        ranks = b"".join(sha256(head + seed + tail).digest()[:8] for seed in made for tail in tails)
        rank_NR = np.frombuffer(ranks, ">u8").reshape(-1, len(SILOS))
        before_NR = (rank_NR[:, :, None] > rank_NR[:, None, :]).sum(axis=2)
        found.append((before_NR[:, 4:] < DRAWN).all(axis=1))
    return np.concatenate(found)


@pytest.mark.parametrize("silos", range(4, 9))
def test_the_risk_is_that_of_every_set_counted_one_by_one(silos: int) -> None:
    for members, colluders in itertools.product(range(3, silos), range(silos + 2)):
        sets = list(itertools.combinations(range(silos), members))
        bad = sum(sum(silo < colluders for silo in each) > members // 3 for each in sets)
        for rounds in (1, 7):
            expected = min(Fraction(1), Fraction(bad, len(sets)) * rounds * 4)
            assert draw_risk(silos, members, colluders=colluders, draws=rounds) == expected


def test_the_smallest_draw_is_the_first_that_is_safe_enough() -> None:
    def risk(members: int) -> Fraction:
        return draw_risk(30, members, colluders=3, draws=100)

    limit = Fraction(1, 10**6)
    assert smallest_draw(30, colluders=3, draws=100, max_risk=limit) == 9  # three cannot exceed a third
    assert risk(9) == 0
    assert min(risk(members) for members in range(3, 9)) > limit
    assert smallest_draw(30, colluders=15, draws=100, max_risk=limit) is None
    assert smallest_draw(30, colluders=15, draws=100, max_risk=Fraction(1)) == 3
    # chances, not sizes alone: 27 of 100 name all of ten colluders once in two million draws
    assert smallest_draw(100, colluders=10, draws=1, max_risk=Fraction(1, 10**5)) == 27


@pytest.mark.parametrize("silos", [4, 7, 30, 199, 200])
def test_the_fraction_that_is_told_draws_as_many(silos: int) -> None:
    assert fraction_for(9, 30) == 0.3
    for members in range(3, silos):
        assert drawn_count(silos, fraction_for(members, silos)) == members
