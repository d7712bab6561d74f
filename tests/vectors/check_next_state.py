"""The sums, products and solutions of docs/protocol.md 7.9 and 7.10 and the inverse of 4.6, number by number.

Python's own floats are IEEE 754 float64, and it fuses nothing. The inputs follow from SHAKE-256 of names.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any, TypeAlias

from check_analysis import check_analysis
from primitives import aes_ctr, expect

Matrix: TypeAlias = list[list[float]]


def check_next_state(vectors: Any) -> int:
    left, right = reals("left", 29, 83), reals("right", 83, 41)
    turned = [list(column) for column in zip(*left, strict=True)]
    found: dict[str, Matrix] = {
        "total": [[total(row[0] for row in reals("total", 10_007, 1))]],
        "total of rows": [[total(column) for column in zip(*right, strict=True)]],
        "product": product(left, right),
        "solved": solved(product(left, turned), left, least_pivot=1e-12),
        "solved with the least norm": solved(product(turned, left), right, least_pivot=1e-9),
        "expanded from blocks of 16": [expanded(size=1_000, block=16)],
        "expanded from blocks of 512": [expanded(size=5_000, block=512)],
    }
    for name, numbers in found.items():
        flat = [number for row in numbers for number in row]
        packed = struct.pack(f"<{len(flat)}d", *flat)
        expect(name, hashlib.sha256(packed).hexdigest(), vectors["arithmetic"][name])
    return len(vectors["arithmetic"]) + check_analysis(vectors["states"])


def reals(name: str, rows: int, columns: int) -> Matrix:
    data = hashlib.shake_256(name.encode()).digest(8 * rows * columns)
    numbers = [(number >> 10) / 2.0**53 for number in struct.unpack(f"<{rows * columns}q", data)]
    return [numbers[row * columns : (row + 1) * columns] for row in range(rows)]


def total(addends: Any) -> float:
    left = list(addends)
    while len(left) > 1:
        half = math.ceil(len(left) / 2)
        left = [left[i] + left[half + i] if half + i < len(left) else left[i] for i in range(half)]
    return left[0]


def product(left: Matrix, right: Matrix) -> Matrix:
    return [[_running(row, column) for column in zip(*right, strict=True)] for row in left]


def _running(row: Any, column: Any) -> float:
    sum_ = 0.0
    for one, other in zip(row, column, strict=True):
        sum_ += one * other
    return sum_


def solved(system: Matrix, right: Matrix, *, least_pivot: float) -> Matrix:
    lower, order, rank = cholesky(system, least_pivot=least_pivot)
    kept, left_over = order[:rank], order[rank:]
    width = len(right[0])
    rows = [list(right[place]) for place in kept]
    for k in range(rank):
        rows[k] = [number / lower[k][k] for number in rows[k]]
        for i in range(k + 1, rank):
            rows[i] = [one - lower[i][k] * other for one, other in zip(rows[i], rows[k], strict=True)]
    rows = [rows[k] + [lower[i][k] for i in range(rank, len(order))] for k in range(rank)]
    for k in reversed(range(rank)):
        rows[k] = [number / lower[k][k] for number in rows[k]]
        for i in range(k):
            rows[i] = [one - lower[k][i] * other for one, other in zip(rows[i], rows[k], strict=True)]
    solution = [[0.0] * width for _ in order]
    for place, row in zip(kept, rows, strict=True):
        solution[place] = row[:width]
    if left_over and rank:
        factors = [row[width:] for row in rows]
        turned = [list(column) for column in zip(*factors, strict=True)]
        shares = product(turned, factors)
        for i, row in enumerate(shares):
            row[i] = 1.0 + row[i]
        others = solved(shares, product(turned, [row[:width] for row in rows]), least_pivot=0.0)
        for place, row in zip(left_over, others, strict=True):
            solution[place] = row
        for place, taken in zip(kept, product(factors, others), strict=True):
            solution[place] = [one - other for one, other in zip(solution[place], taken, strict=True)]
    return solution


def cholesky(system: Matrix, *, least_pivot: float) -> tuple[Matrix, list[int], int]:
    work, order = [list(row) for row in system], list(range(len(system)))
    for k in range(len(work)):
        pivot = max(range(k, len(work)), key=lambda place: (work[place][place], -place))
        if not work[pivot][pivot] > least_pivot:
            return work, order, k
        work[k], work[pivot], order[k], order[pivot] = work[pivot], work[k], order[pivot], order[k]
        for row in work:
            row[k], row[pivot] = row[pivot], row[k]
        work[k][k] = math.sqrt(work[k][k])
        for i in range(k + 1, len(work)):
            work[i][k] /= work[k][k]
        for i in range(k + 1, len(work)):
            for j in range(k + 1, len(work)):
                work[i][j] -= work[i][k] * work[j][k]
    return work, order, len(work)


def expanded(*, size: int, block: int) -> list[float]:
    """Of a seed of zeros and every word kept."""
    blocks = math.ceil(size / block)
    (numbers,) = reals("expand", 1, block * blocks)
    half = blocks
    while half < len(numbers):
        for start in range(0, len(numbers), 2 * half):
            for i in range(start, start + half):
                one, other = numbers[i], numbers[i + half]
                numbers[i], numbers[i + half] = one + other, one - other
        half *= 2
    bits = aes_ctr(bytes(32), 8 * block, (size + 7) // 8)
    factor = math.sqrt(block) / block
    return [numbers[i] * (-factor if bits[i // 8] >> i % 8 & 1 else factor) for i in range(size)]
