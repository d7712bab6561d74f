from __future__ import annotations

import hashlib
import json
import mmap
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from chorale.spec.state import (
    buffer_names,
    float32_bytes,
    state_digest,
    state_from_bytes,
    state_from_file,
    state_parts,
    state_to_bytes,
    trained_names,
)
from crypto.errors import RemoteProtocolError
from strategies.base import Array


def raw(header: object, data: bytes = b"") -> bytes:
    """A file with a header of one's own."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: object = (1,), end: int = 4) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


def test_state_survives_the_way_through_bytes_and_through_a_file(
    state: dict[str, Array], tmp_path: Path
) -> None:
    data = state_to_bytes(state)
    (tmp_path / "state").write_bytes(data)
    for read in (state_from_bytes(data), state_from_file(tmp_path / "state")):
        assert list(read) == sorted(state)
        for name, array in state.items():
            assert read[name].dtype == array.dtype
            assert read[name].shape == array.shape
            np.testing.assert_array_equal(read[name], array)


def test_bytes_do_not_depend_on_the_order_of_the_arrays(state: dict[str, Array]) -> None:
    assert state_to_bytes(dict(reversed(state.items()))) == state_to_bytes(state)


def test_bytes_of_a_state_read_back_are_the_same(state: dict[str, Array]) -> None:
    data = state_to_bytes(state)
    assert state_to_bytes(state_from_bytes(data)) == data


def test_bytes_are_those_that_safetensors_writes() -> None:
    rng = np.random.default_rng(7)
    types = (np.float32, np.float64, np.int64, np.uint8)
    for _ in range(50):
        shapes = [tuple(rng.integers(0, 4, size=rng.integers(0, 4))) for _ in range(rng.integers(1, 8))]
        arrays = {
            f"model/{rng.choice(list('aZ9_-.'))}{place}": (100 * rng.random(shape)).astype(rng.choice(types))
            for place, shape in enumerate(shapes)
        }
        theirs = safetensors.numpy.save(
            {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
        )
        assert state_to_bytes(arrays) == theirs


def test_parts_of_a_state_are_the_memory_of_its_arrays(state: dict[str, Array]) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in state.items()}
    _, *parts = state_parts(arrays)
    for part in parts:
        assert any(np.shares_memory(np.frombuffer(part, np.uint8), array) for array in arrays.values())


def test_a_state_file_is_read_without_a_copy_and_never_written_to(tmp_path: Path) -> None:
    path = tmp_path / "state"
    data = state_to_bytes({"model/w": np.arange(1 << 20, dtype=np.float32)})
    path.write_bytes(data)
    tracemalloc.start()
    read = state_from_file(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # the header is looked for in the first 4 MiB, and the array has as many
    assert peak_bytes < len(data) + (1 << 20)
    assert isinstance(read["model/w"].base, np.ndarray | mmap.mmap)
    read["model/w"][:] = 7
    assert path.read_bytes() == data


def test_a_state_file_may_be_removed_while_its_arrays_are_used(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(state_to_bytes({"model/w": np.arange(5000, dtype=np.float64)}))
    read = state_from_file(path)
    path.unlink()
    np.testing.assert_array_equal(read["model/w"], np.arange(5000))


def test_arrays_that_lie_between_words_are_moved_where_all_can_read_them(tmp_path: Path) -> None:
    values = np.arange(3, dtype=np.float64)
    (tmp_path / "state").write_bytes(raw({"w": entry("F64", (3,), 24)}, values.tobytes()))
    read = state_from_file(tmp_path / "state")["w"]
    assert read.flags.aligned
    np.testing.assert_array_equal(read, values)


def test_an_array_that_is_not_contiguous_is_not_scrambled() -> None:
    # safetensors writes memory as it lies; a transposed weight came out as another matrix
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(state_from_bytes(state_to_bytes({"model/w": array}))["model/w"], array)


def test_digest_is_that_of_the_file(state: dict[str, Array], tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(state_to_bytes(state))
    with (tmp_path / "state").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    assert digest == state_digest(state_to_bytes(state))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected 8 to"),
        (b"\xff" * 8, "expected a header of at most"),
        ((3).to_bytes(8, "little") + b"{}", "expected a header of at most"),
        (raw(b"[ "), "not that of a safetensors file"),
        (raw(b"[" * 100_000), "not that of a safetensors file"),
        (raw([1]), "not that of a safetensors file"),
        (raw({}), "expected 1 to 10000 arrays, got 0"),
        (raw({"w": {"dtype": "F32"}}, b"1234"), "not that of a safetensors file"),
        (raw({"__metadata__": {"a": "b"}, "w": entry()}, b"1234"), "without metadata"),
        (raw({"model w": entry()}, b"1234"), "an array's name is 1 to 200 letters"),
        (raw({"": entry()}, b"1234"), "an array's name is 1 to 200 letters"),
        (raw({"w" * 201: entry()}, b"1234"), "an array's name is 1 to 200 letters"),
        (raw({"w": entry("F16", end=2)}, b"12"), "w: expected one of F32, F64, I64, U8, got F16"),
        (raw({"w": entry(["F32"])}, b"1234"), "w: expected one of F32"),
        (raw({"w": entry(shape=[1] * 9)}, b"1234"), "w: expected at most 8 dimensions"),
        (raw({"w": entry(shape=4)}, b"1234"), "w: expected at most 8 dimensions"),
        (raw({"w": entry(shape=[-1])}, b"1234"), "w: a dimension is a whole number"),
        (raw({"w": entry(shape=[True])}, b"1234"), "w: a dimension is a whole number"),
        (raw({"w": entry(shape=[1 << 40])}, b"1234"), "w: larger than any state"),
        (raw({"w": entry(shape=[0, 10**18, 10**18], end=0)}), "state: "),
        (raw({"w": entry(shape=[2])}, b"1234"), "state: "),
        (raw({"w": entry()}, b"123"), "state: "),
        (raw({"w": entry()}, b"12345"), "state: "),
    ],
)
def test_state_of_a_peer_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        state_from_bytes(data)
    (tmp_path / "state").write_bytes(data)
    with pytest.raises(RemoteProtocolError, match=message):
        state_from_file(tmp_path / "state")


def test_metadata_is_refused_however_it_was_written() -> None:
    data = safetensors.numpy.save({"model/w": np.ones(1, np.float32)}, metadata={"format": "pt"})
    with pytest.raises(RemoteProtocolError, match="without metadata"):
        state_from_bytes(data)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "expected 1 to 10000 arrays, got 0"),
        ({"model/w": np.ones(1, np.float16)}, "got float16"),
        ({"model/w": np.ones(1, ">f4")}, "got >f4"),
        ({"model:w": np.ones(1, np.float32)}, "an array's name"),
    ],
)
def test_state_that_nobody_would_read_is_not_written(arrays: dict[str, Array], message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        state_to_bytes(arrays)


def test_parameters_buffers_and_counters_are_distinguished(state: dict[str, Array]) -> None:
    assert trained_names(state) == ("body.bias", "body.weight")
    assert buffer_names(state) == ("norm.running_mean", "norm.running_var")
    assert float32_bytes(state) == 4 * 8
