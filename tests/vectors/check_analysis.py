"""What an analysis publishes a second time, for check_next_state.py: docs/protocol.md 7.21 in plain Python.

The records that are summed follow from SHAKE-256 of names, those of tests/support/summed_records.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

from primitives import expect

Parts: TypeAlias = list[list[int]]  # declared parts of each published one, in order
Counts: TypeAlias = list[int]
Held: TypeAlias = list[tuple[int, float, float]]  # how many values at least, and between which z
State: TypeAlias = dict[str, tuple[str, list[int], list[Any]]]  # type, shape and numbers of each array

RECORDS, SILOS, LEAST = 1000, 4, 10
CODES = {"I64": "q", "F64": "d", "U8": "B"}  # in the order in which a state holds them
ORDER = tuple(CODES)


@dataclass(frozen=True, kw_only=True)
class Column:
    """ends: where its declared parts end; missing values are one part more. missing_bits: one record of
    2^missing_bits lacks a value."""

    name: str
    ends: tuple[int, ...]
    missing_bits: int
    is_numbers: bool = True
    has_mean: bool = False

    @property
    def missing(self) -> int:
        return len(self.ends) - 1

    def values(self) -> list[int | None]:
        lacks = drawn(f"{self.name} missing", self.missing_bits)
        if self.has_mean:
            shared = "pulse" if self.name == "rate" else self.name
            turns = [drawn(f"{name} {turn}", 5) for turn, name in enumerate([shared] * 3 + [self.name])]
            found = [124 + sum(four) for four in zip(*turns, strict=True)]
        else:
            found = [128 + number for number in drawn(self.name, 8)]
        return [value if lack else None for value, lack in zip(found, lacks, strict=True)]

    def parts(self) -> list[int]:
        return [
            self.missing if value is None else sum(end <= value for end in self.ends) - 1
            for value in self.values()
        ]

    def z(self, value: float) -> float:
        half = (self.ends[-1] - self.ends[0]) / 2
        return (value - (self.ends[0] + half)) / half


COLUMNS = (
    Column(name="ward", ends=(0, 110, 216, 255, 256), missing_bits=9, is_numbers=False),
    Column(name="pulse", ends=(60, 92, 112, 120, 128, 136, 188), missing_bits=7, has_mean=True),
    Column(name="age", ends=(0, 40, 80, 120, 124, 254, 256), missing_bits=3),
    Column(name="pain", ends=(0, 100, 180, 240, 252, 256), missing_bits=5, is_numbers=False),
    Column(name="weight", ends=(60, 124, 188), missing_bits=2, has_mean=True),
)

RATE = Column(name="rate", ends=(60, 108, 116, 124, 132, 140, 188), missing_bits=4, has_mean=True)


def check_analysis(states: Any) -> int:
    for variant, group in (("analysis", 0), ("analysis_ungrouped", None)):
        state: State = {
            "method/analysis": ("U8", [0], []),
            "method/total": ("I64", [], [RECORDS]),
        }
        expect(variant, digest_of(state), states[variant]["0 enrollment"])
        state |= counts(group)
        expect(variant, digest_of(state), states[variant]["0 analysis-counts"])
        state |= values(group, state)
        expect(variant, digest_of(state), states[variant]["0 analysis-values"])
    variant = "analysis_correlations"
    state = {"method/analysis": ("U8", [0], []), "method/total": ("I64", [], [RECORDS])}
    found = correlated((COLUMNS[1], RATE, COLUMNS[4]))
    for phase, arrays in found.items():
        state |= arrays
        expect(variant, digest_of(state), states[variant][f"0 {phase}"])
    return 6 + len(found)


def drawn(name: str, bits: int) -> list[int]:
    data = hashlib.shake_256(name.encode()).digest(8 * RECORDS)
    return [number >> (64 - bits) for number in struct.unpack(f"<{RECORDS}q", data)]


def digest_of(state: State) -> str:
    entries, end, body = {}, 0, b""
    for name in sorted(state, key=lambda name: (ORDER.index(state[name][0]), name)):
        dtype, shape, numbers = state[name]
        data = struct.pack(f"<{len(numbers)}{CODES[dtype]}", *numbers)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end, body = end + len(data), body + data
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return hashlib.sha256(len(header).to_bytes(8, "little") + header + body).hexdigest()


def counts(group: int | None) -> State:
    group_parts = [0] * RECORDS if group is None else COLUMNS[group].parts()
    groups = 1 if group is None else COLUMNS[group].missing + 1
    rows: Parts = [[0]]
    if group is not None:
        rows = finest(COLUMNS[group], tally(group_parts, groups), LEAST)
    state = published("group_parts", "group_counts", rows, tally(group_parts, groups))
    for place, column in enumerate(COLUMNS):
        if place == group:
            continue
        table = [[0] * (column.missing + 1) for _ in range(groups)]
        for row, part in zip(group_parts, column.parts(), strict=True):
            table[row][part] += 1
        margin = [sum(row[part] for row in table) for part in range(column.missing + 1)]
        parts = finest(column, margin, LEAST)
        state |= published(f"parts/{place}", f"part_counts/{place}", parts, margin)
        merged = in_table(column, parts, table, rows, LEAST)
        state |= published(f"cell_parts/{place}", "", merged, margin)
        held = cells(table, rows, merged)
        shape = [len(rows), len(merged)]
        state[f"method/cell_counts/{place}"] = "I64", shape, [cell for row in held for cell in row]
    return state


def correlated(columns: tuple[Column, ...]) -> dict[str, State]:
    """Of complete records, by phase. No part of missing values: here it holds nobody, and is left out."""
    records = [row for row in zip(*(column.values() for column in columns), strict=True) if None not in row]
    n = len(records)
    counted: State = {"method/group_parts": ("I64", [1], [0]), "method/group_counts": ("I64", [1], [n])}
    described: State = {}
    scores, outermost = [], []
    for place, (column, own) in enumerate(zip(columns, zip(*records, strict=True), strict=True)):
        held = tally([sum(end <= value for end in column.ends) - 1 for value in own], column.missing)
        parts = [
            [each for each in part if each != column.missing] for part in finest(column, [*held, 0], LEAST)
        ]
        sizes = [sum(held[each] for each in part) for part in parts]
        for name in ("parts", "cell_parts"):
            counted |= published(f"{name}/{place}", "", parts, held)
        counted[f"method/part_counts/{place}"] = "I64", [len(parts)], sizes
        counted[f"method/cell_counts/{place}"] = "I64", [1, len(parts)], sizes
        zs = [column.z(value) for value in own]
        edges = [(column.z(column.ends[part[0]]), column.z(column.ends[part[-1] + 1])) for part in parts]
        shown = figure(column, zs, [(k, low, high) for k, (low, high) in zip(sizes, edges, strict=True)], 1)
        mean, deviation = shown or (0.0, 0.0)
        described[f"method/means/{place}"] = "F64", [2], [mean] * 2
        described[f"method/deviations/{place}"] = "F64", [2], [deviation] * 2
        described[f"method/means_shown/{place}"] = "U8", [2], [int(shown is not None)] * 2
        spread = deviation / (column.ends[-1] - column.ends[0]) * 2
        scores.append([(z - column.z(mean)) / spread for z in zs] if shown else None)
        ends = (column.z(mean) - edges[0][1], edges[-1][0] - column.z(mean))
        outermost.append([max(end / spread, 0.0) for end in ends] if shown else [])
    found, are_shown = [], []
    for i, j in itertools.combinations(range(len(columns)), 2):
        r = correlation(scores[i], scores[j], n, len(columns))
        if r is not None:
            across = zip(outermost[i], outermost[j][:: 1 if r < 0 else -1], strict=True)
            room = (1 - r * r) * (n - 1) * (n - LEAST) / (n * LEAST)
            if any(u * u + v * v + 2 * abs(r) * u * v > room for u, v in across):
                r = None
        are_shown.append(int(r is not None))
        power = max(power_of_ten((1 - r * r) / math.sqrt(n) / 2), -3) if r is not None else 0
        found.append(0.0 if r is None else rounded(r, power))
    products: State = {
        "method/correlations": ("F64", [len(found)], found),
        "method/correlations_shown": ("U8", [len(found)], are_shown),
    }
    return {"analysis-counts": counted, "analysis-values": described, "analysis-products": products}


def correlation(one: list[float] | None, other: list[float] | None, n: int, columns: int) -> float | None:
    if one is None or other is None or n < max(3 * (columns + 1), columns + 11):
        return None
    squares = [math.fsum(score * score for score in scores) for scores in (one, other)]
    if not all(n / 2 < square < 2 * n for square in squares):
        return None
    products = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return products / math.sqrt(squares[0] * squares[1])


def published(of_part: str, of_count: str, parts: Parts, counts: Counts) -> State:
    numbers = [next(i for i, part in enumerate(parts) if each in part) for each in range(len(counts))]
    state: State = {f"method/{of_part}": ("I64", [len(numbers)], numbers)}
    if of_count:
        sums = [sum(counts[each] for each in part) for part in parts]
        state[f"method/{of_count}"] = "I64", [len(sums)], sums
    return state


def tally(parts: list[int], size: int) -> Counts:
    return [parts.count(part) for part in range(size)]


def values(group: int | None, state: State) -> State:
    row_of = state["method/group_parts"][2]
    group_parts = [0] * RECORDS if group is None else COLUMNS[group].parts()
    rows = len(state["method/group_counts"][2])
    found: State = {}
    for place, column in enumerate(COLUMNS):
        if not column.has_mean:
            continue
        of_row: list[list[float]] = [[] for _ in range(rows)]
        for part, value in zip(group_parts, column.values(), strict=True):
            if value is not None:
                of_row[row_of[part]].append(column.z(value))
        # sums of multiples of 1/4096 are exact in any order
        every = [z for zs in of_row for z in zs]
        held = intervals(column, place, state, rows)
        figures = [figure(column, zs, parts, rows) for zs, parts in zip([every, *of_row], held, strict=True)]
        shown = [each is not None for each in figures]
        if any(shown[1:]) and not all(shown[1:]):
            shown[0] = False
        both = zip(figures, shown, strict=True)
        pairs = [each if each and is_shown else (0.0, 0.0) for each, is_shown in both]
        found[f"method/means/{place}"] = "F64", [rows + 1], [mean for mean, _ in pairs]
        found[f"method/deviations/{place}"] = "F64", [rows + 1], [deviation for _, deviation in pairs]
        found[f"method/means_shown/{place}"] = "U8", [rows + 1], [int(each) for each in shown]
    return found


def intervals(column: Column, place: int, state: State, rows: int) -> list[Held]:
    """Of all records by the finest parts, then of each row by the parts in its table."""
    finest_of, in_table_of = (state[f"method/{name}/{place}"][2] for name in ("parts", "cell_parts"))
    part_counts, cell_counts = (state[f"method/{name}/{place}"][2] for name in ("part_counts", "cell_counts"))
    few = LEAST - 1
    if finest_of.count(finest_of[-1]) == 1 or len(part_counts) == 1:
        few = part_counts[-1]
    width = len(cell_counts) // rows
    each_row = [cell_counts[row * width : (row + 1) * width] for row in range(rows)]
    found = []
    for numbers, held in ((finest_of, part_counts), *((in_table_of, row) for row in each_row)):
        parts: Held = []
        for number, count in enumerate(held):
            own = [part for part, other in enumerate(numbers[:-1]) if other == number]
            if own:
                certain = max(count - few, 0) if numbers[-1] == number else count
                low, high = column.z(column.ends[own[0]]), column.z(column.ends[own[-1] + 1])
                parts.append((certain, low, high))
        found.append(parts)
    return found


def figure(column: Column, zs: list[float], held: Held, rows: int) -> tuple[float, float] | None:
    """Mean and deviation; None where they are not shown."""
    if len(held) < 3:
        return None
    n = len(zs)
    m = sum(zs) / n
    q = sum(z * z for z in zs) - n * (m * m)
    reach = (1.0 + abs(m)) * (1.0 + abs(m))
    error = math.sqrt(SILOS) / sums_scale()
    others = [(max(count - 2, 0), low, high) for count, low, high in held]
    is_dominated = q > 4.0 * least_squares(others) and q < 7.0 / 3.0 * reach
    if q <= 2.0 * error * rows * reach * math.sqrt(n) or is_dominated:
        return None
    half = (column.ends[-1] - column.ends[0]) / 2
    deviation = half * math.sqrt(q / (n - 1))
    power = max(power_of_ten(deviation / math.sqrt(n) / 2), power_of_ten(deviation) - 2)
    mean = column.ends[0] + half + half * m
    return rounded(mean, power), rounded(deviation, power)


def power_of_ten(most: float) -> int:
    """The exponent of the largest that is at most that."""
    return max(power for power in range(-290, 291) if float(f"1e{power}") <= most)


def rounded(number: float, power: int) -> float:
    return float(f"{round(number / float(f'1e{power}'))}e{power}")


def sums_scale() -> float:
    """Of 64 bits and tagged, with a bound of twice the records: docs/protocol.md 4.3."""
    scale = 1.0
    while SILOS * math.ceil(2 * scale * 2 * RECORDS) <= 2**47 - 1:
        scale *= 2
    return scale


def finest(column: Column, counts: Counts, t: int) -> Parts:
    return ordered(column, _of_numbers(counts, t) if column.is_numbers else _of_categories(counts, t))


def _of_numbers(counts: Counts, t: int) -> Parts:
    *declared, missing = range(len(counts))
    complete: Parts = []
    begun: list[int] = []
    for part in (missing, *declared):
        begun.append(part)
        if sum(counts[each] for each in begun) >= t:
            complete.append(begun)
            begun = []
    complete[-1] += begun
    return complete


def _of_categories(counts: Counts, t: int) -> Parts:
    *declared, missing = range(len(counts))
    joined = {declared[-1], *(part for part in (*declared, missing) if counts[part] < t)}
    for part in (*reversed(declared), missing):
        if sum(counts[each] for each in joined) < t:
            joined.add(part)
    return [sorted(joined), *([part] for part in (*declared, missing) if part not in joined)]


def ordered(column: Column, parts: Parts) -> Parts:
    """By their lowest part; missing values alone come last."""
    return sorted((sorted(part) for part in parts), key=lambda part: part[0])


def in_table(column: Column, parts: Parts, table: list[Counts], rows: Parts, t: int) -> Parts:
    while len(parts) > 1 and any(cell < t for row in cells(table, rows, parts) for cell in row):
        parts = coarser(
            column, parts, [sum(row[each] for row in table) for each in range(column.missing + 1)]
        )
    return parts


def coarser(column: Column, parts: Parts, counts: Counts) -> Parts:
    sizes = [sum(counts[each] for each in part) for part in parts]
    joins = min(range(len(parts)), key=lambda place: (sizes[place], place))
    if column.is_numbers and parts[joins] == [column.missing]:
        other = 0
    else:
        near = [joins - 1, joins + 1] if column.is_numbers else range(len(parts))
        others = [place for place in near if 0 <= place < len(parts) and place != joins]
        with_values = [place for place in others if not column.is_numbers or parts[place] != [column.missing]]
        other = min(with_values or others, key=lambda place: (sizes[place], place))
    rest = [part for place, part in enumerate(parts) if place not in (joins, other)]
    return ordered(column, [parts[joins] + parts[other], *rest])


def cells(table: list[Counts], rows: Parts, parts: Parts) -> list[Counts]:
    return [[sum(table[g][p] for g in row for p in part) for part in parts] for row in rows]


def least_squares(held: Held) -> float:
    """Of so many values in each interval, around their mean."""
    ends = sorted({end for _, low, high in held for end in (low, high)})
    best = math.inf
    for left, right in itertools.pairwise(ends):
        pulls = [(w, high if high <= left else low) for w, low, high in held if high <= left or low >= right]
        weight = sum(w for w, _ in pulls)
        centre = sum(w * end for w, end in pulls) / weight if weight else left
        centre = min(max(centre, left), right)
        best = min(best, sum(w * (end - centre) * (end - centre) for w, end in pulls))
    return best
