from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.errors import LocalProtocolError, RemoteProtocolError
from crypto.session import shamir
from crypto.session.shamir import FIELD, SHARE_BYTES, Recoverer

SECRET = bytes(range(32))


def test_the_field_is_prime() -> None:
    """Miller-Rabin with 40 bases: a composite passes with a probability below 4^-40."""
    odd, twos = FIELD - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        power = pow(base, odd, FIELD)
        squares = [pow(power, 1 << k, FIELD) for k in range(twos)]
        assert power == 1 or FIELD - 1 in squares


@settings(max_examples=60)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_threshold_of_shares_rebuilds_the_secret(secret: bytes, silos: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, silos))
    xs = range(1, silos + 1)
    shares = dict(zip(xs, shamir.split(secret, threshold=threshold, xs=xs, random=os.urandom), strict=True))
    chosen = data.draw(st.permutations(sorted(shares)))[: data.draw(st.integers(threshold, silos))]
    assert Recoverer(chosen, threshold).recover([shares[x] for x in chosen]) == secret


def test_every_subset_of_four_in_six_rebuilds_and_none_of_three_does() -> None:
    shares = shamir.split(SECRET, threshold=4, xs=range(1, 7), random=os.urandom)
    for xs in itertools.combinations(range(1, 7), 4):
        assert Recoverer(xs, 4).recover([shares[x - 1] for x in xs]) == SECRET
    for xs in itertools.combinations(range(1, 7), 3):
        assert _rebuilt_or_refused(xs, [shares[x - 1] for x in xs]) != SECRET  # equal by chance: 2^-256


def _rebuilt_or_refused(xs: tuple[int, ...], shares: list[bytes]) -> bytes | None:
    try:
        return Recoverer(xs, len(xs)).recover(shares)
    except RemoteProtocolError:
        return None  # a number above 2^256


def test_fewer_shares_fit_every_secret() -> None:
    """Two of three shares and any claimed secret lie on one polynomial: they tell nothing."""
    shares = shamir.split(SECRET, threshold=3, xs=[1, 2, 3], random=os.urandom)
    points = {1: shares[0], 2: shares[1]}
    for claimed in (0, 1, FIELD - 1):
        third = _on_polynomial({0: claimed} | {x: int.from_bytes(s, "big") for x, s in points.items()}, 3)
        rebuilt = _on_polynomial({**{x: int.from_bytes(s, "big") for x, s in points.items()}, 3: third}, 0)
        assert rebuilt == claimed


def _on_polynomial(points: dict[int, int], x: int) -> int:
    total = 0
    for i, y in points.items():
        term = y
        for j in points:
            if j != i:
                term = term * (x - j) * pow(i - j, -1, FIELD) % FIELD
        total += term
    return total % FIELD


def test_shares_follow_the_polynomial_of_the_random_bytes() -> None:
    wide = bytes(63) + b"\x05"
    shares = shamir.split(bytes(31) + b"\x07", threshold=2, xs=[1, 2], random=lambda size: wide[:size])
    assert [int.from_bytes(share, "big") for share in shares] == [7 + 5, 7 + 10]


def test_a_changed_share_changes_the_secret() -> None:
    shares = shamir.split(SECRET, threshold=2, xs=[1, 2, 3], random=os.urandom)
    changed = bytearray(shares[0])
    changed[-1] ^= 1
    assert _rebuilt_or_refused((1, 2), [bytes(changed), shares[1]]) != SECRET


def test_a_rebuilt_number_above_32_bytes_fails_closed() -> None:
    share = (1 << 256).to_bytes(SHARE_BYTES, "big")
    with pytest.raises(RemoteProtocolError, match="rebuild no 32-byte secret"):
        Recoverer([1], 1).recover([share])
    below = ((1 << 256) - 1).to_bytes(SHARE_BYTES, "big")
    assert Recoverer([1], 1).recover([below]) == b"\xff" * 32


@pytest.mark.parametrize(
    "share",
    [b"", bytes(32), bytes(34), FIELD.to_bytes(33, "big"), b"\xff" * 33],
    ids=["0", "32", "34", "p", "ff"],
)
def test_a_share_that_is_no_field_element_is_refused(share: bytes) -> None:
    good = shamir.split(SECRET, threshold=2, xs=[1, 2, 3], random=os.urandom)
    for shares in ([share, *good[1:]], [*good[:2], share]):  # among the first t and beyond them
        with pytest.raises(RemoteProtocolError, match="no 33-byte number below the prime"):
            Recoverer([1, 2, 3], 2).recover(shares)


@pytest.mark.parametrize(
    ("threshold", "xs", "message"),
    [
        (0, [1, 2], "at least 0 places"),
        (3, [1, 2], "at least 3 places, got 2"),
        (2, [1, 1], "distinct numbers from 1 on"),
        (2, [0, 1], "distinct numbers from 1 on"),
        (2, [-1, 1], "distinct numbers from 1 on"),
        (2, [1, FIELD + 1], "distinct numbers from 1 on"),
    ],
)
def test_odd_places_are_our_own_mistake(threshold: int, xs: list[int], message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        shamir.split(SECRET, threshold=threshold, xs=xs, random=os.urandom)
    with pytest.raises(LocalProtocolError, match=message):
        Recoverer(xs, threshold)


def test_odd_secrets_and_numbers_of_shares_are_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="a secret of 32 bytes, got 31"):
        shamir.split(bytes(31), threshold=1, xs=[1], random=os.urandom)
    with pytest.raises(LocalProtocolError, match="expected 2 shares, got 1"):
        Recoverer([1, 2], 1).recover([bytes(33)])
