"""The native floor of a round: what is counted, and how it grows."""

from __future__ import annotations

import json

import pytest

from bench import native_floor
from bench.native_floor import PIECE_BYTES, Parts


def test_the_floor_is_the_sum_of_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert native_floor.main(["--silos", "3", "--length", "1000", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["native_cpu_seconds"] == sum(printed["parts"].values()) == printed["rows"][0]["value"]
    assert set(printed["parts"]) == {"tls", "keystreams", "adding", "hashing", "copying"}


def test_every_byte_is_worked_through_once() -> None:
    pieces = native_floor._pieces(2 * PIECE_BYTES + 5)
    assert pieces == [PIECE_BYTES, PIECE_BYTES, 5]
    assert native_floor._pieces(PIECE_BYTES) == [PIECE_BYTES]


def test_a_total_counts_all_parts() -> None:
    assert Parts(tls=1, keystreams=2, adding=4, hashing=8, copying=16).total == 31
