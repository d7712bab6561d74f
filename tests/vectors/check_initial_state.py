"""First states of jobs a second time, for check_vectors.py: docs/protocol.md 7.12 in plain Python.

The quantiles come from the standard library's inverse of the normal distribution, which is right to more
digits than a whole number of 2^-24 needs.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist
from typing import Any

from primitives import aes_ctr, digest, expect, little_endian

Rows = list[list[float]]


def check_initial_state(vectors: Any) -> int:
    table = quantiles()
    expect("quantiles", {str(i): table[i] for i in map(int, vectors["quantiles"])}, vectors["quantiles"])
    packed = struct.pack(f"<{len(table)}i", *table)
    expect("table", hashlib.sha256(packed).hexdigest(), vectors["quantiles_sha256"])
    small = [state for state in vectors["states"] if "shapes" in state]
    for state in small:
        arrays = {name: packed_array(state, name) for name in sorted(state["shapes"])}
        computed = {name: hashlib.sha256(data).hexdigest() for name, data in arrays.items()}
        expect("arrays", computed, state["arrays"])
        expect("state", hashlib.sha256(state_file(state["shapes"], arrays)).hexdigest(), state["digest"])
    return 1 + len(small)


@cache
def quantiles() -> list[int]:
    inverse = NormalDist().inv_cdf
    return [round(inverse((i + 0.5) / 2**16) * 2**24) for i in range(2**16)]


def state_file(shapes: Any, arrays: dict[str, bytes]) -> bytes:
    entries, end = {}, 0
    for name, data in arrays.items():
        entries[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [end, end + len(data)]}
        end += len(data)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + b"".join(arrays.values())


def packed_array(state: Any, name: str) -> bytes:
    values = array(state, name)
    return struct.pack(f"<{len(values)}f", *values)


def array(state: Any, name: str) -> list[float]:
    """Flattened, by the table of docs/protocol.md 7.12."""
    shapes, shape = state["shapes"], state["shapes"][name]
    count = math.prod(shape)
    words = key_words(digest("initial-state", bytes.fromhex(state["base"]), state["seed"], name))
    if name == "model/head.weight" and state["head"] == "frozen-orthonormal":
        return [x for row in orthonormal(shape[0], shape[1], words) for x in row]
    if name == "model/head.weight" and state["head"] == "frozen-etf":
        return [x for row in simplex(shape[0], shape[1], words) for x in row]
    if name.startswith(("model/head.", "model/projection.")):
        width = shapes[name.rpartition(".")[0] + ".weight"][1]
        factor = 1.0 / math.sqrt(width) / 2**32
        return [(2 * next(words) + 1 - 2**32) * factor for _ in range(count)]
    start = state.get("starts", {}).get(name.removeprefix("model/body."))
    if isinstance(start, dict):
        return normal(count, words, variance=start["std"] * start["std"])
    if start is not None:
        return [start] * count
    if len(shape) > 1:
        fan = shape[0] * math.prod(shape[2:]) if len(shape) > 2 else shape[1]
        return normal(count, words, variance=2.0 / fan)
    last = name.rpartition(".")[2]
    is_zero = last in ("bias", "running_mean") or last.startswith("bias_") or last.endswith("_bias")
    return [0.0 if is_zero else 1.0] * count


def key_words(key: bytes) -> Iterator[int]:
    for start in range(0, 1 << 30, 1 << 16):
        yield from little_endian(aes_ctr(key, start, 1 << 16), 32)


def normal(count: int, words: Iterator[int], *, variance: float = 1.0) -> list[float]:
    factor, table = math.sqrt(variance / 2.0) / 2**24, quantiles()
    drawn = (next(words) for _ in range(count))
    return [(table[word & 0xFFFF] + table[word >> 16]) * factor for word in drawn]


def orthonormal(rows: int, width: int, words: Iterator[int]) -> Rows:
    found: Rows = []
    while len(found) < rows:
        drawn = normal(width, words)
        rest = drawn
        for _ in range(2):
            along = [in_order(u * x for u, x in zip(unit, rest, strict=True)) for unit in found]
            if found:
                taken = [
                    in_order(a * unit[i] for a, unit in zip(along, found, strict=True)) for i in range(width)
                ]
                rest = [x - t for x, t in zip(rest, taken, strict=True)]
        square = in_order(x * x for x in rest)
        if square > 2.0**-40 * in_order(x * x for x in drawn):
            found.append([x / math.sqrt(square) for x in rest])
    return found


def simplex(classes: int, width: int, words: Iterator[int]) -> Rows:
    units = orthonormal(classes - 1, width, words)
    turned = [[x / math.sqrt(k * (k + 1.0)) for x in unit] for k, unit in enumerate(units, start=1)]
    stretch = math.sqrt(classes / (classes - 1.0))
    head: Rows = []
    for i in range(classes):
        row = []
        for d in range(width):
            later = [turned[k][d] for k in reversed(range(i, classes - 1))]
            value = in_order(later) if later else 0.0
            row.append(stretch * (value - i * turned[i - 1][d] if i else value))
        head.append(row)
    return head


def in_order(values: Any) -> float:
    """One addition after the other; `sum` of newer Pythons carries what rounding drops."""
    total: float | None = None
    for value in values:
        total = value if total is None else total + value
    assert total is not None
    return total
