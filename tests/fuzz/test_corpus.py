"""The committed inputs, without atheris: no parser of foreign bytes lets another error out than it says."""

from __future__ import annotations

import random
import struct
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from chorale.spec.state import state_to_bytes
from chorale.transport import chunks
from crypto import encoding
from crypto.identity import certificates
from tests.fuzz import keep, mutate
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS

MAX_CORPUS_BYTES = 600_000
ROOM_BYTES, ROOM_PER_BYTE = 8 << 20, 64  # of Python's own memory, as an input is read
CONTROL = Target(name="control", read=lambda data: {b"a": 1}[data[:1]], seeds=lambda: [b"abc"])
# libraries warn of what they read: an odd serial number, a torn tag
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")


@pytest.mark.parametrize("name", TARGETS)
def test_committed_inputs_are_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    assert target.corpus, f"no inputs of {name}: run `python -m tests.fuzz.keep {name}`"
    for seed in target.seeds():
        target.try_on(seed)
    parsed = [path for path in target.corpus if target.try_on(path.read_bytes())]
    assert parsed, f"the form of {name} has changed: run `python -m tests.fuzz.keep {name}`"


@pytest.mark.parametrize("name", TARGETS)
def test_no_committed_input_takes_memory_beyond_its_size(name: str) -> None:
    target = TARGETS[name]
    inputs = target.inputs
    for data in inputs:
        target.try_on(data)  # what is imported and remembered is not of the input
    tracemalloc.start()
    try:
        for data in inputs:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            target.try_on(data)
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken <= ROOM_BYTES + ROOM_PER_BYTE * len(data), keep.input_name(data)
    finally:
        tracemalloc.stop()


def test_corpus_is_small_and_holds_nothing_else() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(TARGETS)
    assert all(path.name == keep.input_name(path.read_bytes()) for path in files)
    assert sum(path.stat().st_size for path in files) <= MAX_CORPUS_BYTES


def test_control_an_error_that_is_not_declared_is_found() -> None:
    assert CONTROL.try_on(b"abc")
    with pytest.raises(KeyError):
        CONTROL.try_on(b"other")


def _no_limit(message: bytes, start: int) -> tuple[int, int]:
    """A varint of any length and any number, as a careless reader takes it."""
    number = 0
    for place, digit in enumerate(message[start:]):
        number |= (digit & 0x7F) << 7 * place
        if digit < 0x80:
            return number, start + place + 1
    return 0, len(message) + 1


@pytest.mark.parametrize(
    ("names", "module", "attribute", "broken"),
    [
        (("chunk", "upload-message"), chunks, "_read_varint", _no_limit),
        (("certificate",), certificates, "ODD_CERTIFICATE", (TypeError,)),
        (("encoding",), encoding, "_NUMBER", struct.Struct(">cq")),
    ],
)
def test_control_a_broken_parser_is_found_by_the_corpus(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], module: Any, attribute: str, broken: Any
) -> None:
    inputs = [(TARGETS[name], data) for name in names for data in TARGETS[name].inputs]
    monkeypatch.setattr(module, attribute, broken)
    certificates.certificate_from_der.cache_clear()
    found = 0
    for target, data in inputs:
        try:
            target.try_on(data)
        except Exception:
            found += 1
    assert found > 0


def _document(count: int) -> bytes:
    return encoding.encode("fuzz", *[[index, b"x"] for index in range(count)])


def _state(count: int) -> bytes:
    return state_to_bytes({f"model/{index}": np.zeros(1, np.float32) for index in range(count)})


def _yaml(count: int) -> bytes:
    return b"".join(b"name-%d: [1, {a: 2}]\n" % index for index in range(count))


def _job(count: int) -> bytes:
    (first, *_) = TARGETS["job"].seeds()
    return first + b"".join(b"unknown-%d: 1\n" % index for index in range(count))


@pytest.mark.parametrize(
    ("name", "grown"), [("encoding", _document), ("state", _state), ("yaml", _yaml), ("job", _job)]
)
def test_calls_grow_with_the_input_and_no_faster(name: str, grown: Callable[[int], bytes]) -> None:
    target = TARGETS[name]
    target.try_on(grown(10))
    small, large = (_calls(target, grown(count)) for count in (200, 800))
    assert large <= 4.4 * small


def _calls(target: Target, data: bytes) -> int:
    """Calls of Python and of C: a measure of work that no other process changes."""
    count = 0

    def on_event(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        target.try_on(data)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", TARGETS)
def test_mutators_give_bytes_and_change_them(name: str) -> None:
    target, chance = TARGETS[name], random.Random(1)
    change = target.mutate or mutate.raw
    seed = next(iter(target.seeds()))
    made = {change(seed, chance) for _ in range(50)}
    assert len(made) > 10
    for data in made:
        target.try_on(data)


def test_smallest_inputs_of_each_way_are_kept() -> None:
    target = TARGETS["chunk"]
    inputs = [chunks.chunk_to_wire(chunks.Chunk(0, b"d" * size)) for size in (1, 2, 3)]
    assert keep.chosen(target, [*inputs, b"\xff"]) == [b"\xff", inputs[0]]
