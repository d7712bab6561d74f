"""A measured number with the intervals that it comes with, as records carry it and as people read it.

Records, tables and metrics hold flat numbers: beside `accuracy` stand `accuracy_noise_low` and `_high`,
`accuracy_sampling_low` and `_high`, and `accuracy_cut` where the sum was clipped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from strategies.intervals import CONFIDENCE

Interval: TypeAlias = tuple[float, float]
TESTED = "tested"  # how many records stand behind the figures of a phase
PARTS = ("noise_low", "noise_high", "sampling_low", "sampling_high", "cut")
AT_LEAST, AT_MOST = "at least", "at most"
MOST_DIGITS = 4  # behind the point
WIDE_DIGITS = 3  # of what no interval bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """value: NaN where the sums say nothing. noise: where the hold-outs' own figure is, by the known noise of
    the sums; None in a job without noise. sampling: where that of new records is; None where the sums do not
    hold how far single records are spread. Both at 95 %; an infinite end where nothing bounds it.
    bias: `at least` or `at most` where records were clipped before they were summed. records: how many were
    tested; None where that is not known exactly.
    """

    value: float
    noise: Interval | None = None
    sampling: Interval | None = None
    bias: str = ""
    records: int | None = None

    def __str__(self) -> str:
        """`0.982 (95 %: 0.963 to 0.992 for new records, 360 tested)`, in digits that the interval bears."""
        found = [] if self.noise is None else [f"{self._span(self.noise)} for these records"]
        if self.sampling is not None:
            found.append(f"{self._span(self.sampling)} for new records")
        intervals = f"95 %: {', '.join(found)}" if found else "no interval"
        return f"{self._head} ({intervals}{'' if self.records is None else f', {self.records} tested'})"

    @property
    def brief(self) -> str:
        """The same for a cell of a table whose head says that intervals are of 95 %."""
        if self.noise is None:
            span = "no interval" if self.sampling is None else self._span(self.sampling)
            return f"{self._head} ({span})"
        new = "" if self.sampling is None else f", new {self._span(self.sampling)}"
        return f"{self._head} ({self._span(self.noise)}{new})"

    @property
    def spanned(self) -> str:
        """The same, where it is said beside that intervals are of noise."""
        return self._number(self.value) + ("" if self.noise is None else f" ({self._span(self.noise)})")

    @property
    def band(self) -> Interval | None:
        """What a chart draws around the curve: the widest interval with two ends."""
        ends = [each for each in (self.sampling, self.noise) if each and all(map(math.isfinite, each))]
        return ends[0] if ends else None

    def to_json(self) -> dict[str, Any]:
        """null: no such interval, or no such end."""
        noise, sampling = (
            each and [end if math.isfinite(end) else None for end in each]
            for each in (self.noise, self.sampling)
        )
        return {
            "value": self.value if math.isfinite(self.value) else None,
            "confidence": CONFIDENCE,
            "noise": noise,
            "sampling": sampling,
            "bias": self.bias,
            "records": self.records,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Figure:
        """What to_json wrote."""
        noise, sampling = (
            document[kind] and (_or(document[kind][0], -math.inf), _or(document[kind][1], math.inf))
            for kind in ("noise", "sampling")
        )
        return cls(
            value=_or(document["value"], math.nan),
            noise=noise,
            sampling=sampling,
            bias=document["bias"],
            records=document["records"],
        )

    def flat(self, name: str) -> dict[str, float]:
        """As a record carries it."""
        found = {name: self.value}
        for kind, interval in (("noise", self.noise), ("sampling", self.sampling)):
            if interval is not None:
                found |= {f"{name}_{kind}_low": interval[0], f"{name}_{kind}_high": interval[1]}
        return found | ({f"{name}_cut": 1.0 if self.bias == AT_LEAST else -1.0} if self.bias else {})

    @property
    def _head(self) -> str:
        parts = (self.bias, self._number(self.value), "" if self.noise is None else "with noise")
        return " ".join(filter(None, parts))

    def _span(self, interval: Interval) -> str:
        low, high = interval
        if math.isinf(low) and math.isinf(high):
            return "any number"
        if math.isinf(high):
            return f"{AT_LEAST} {self._number(low)}"
        return (
            f"{AT_MOST} {self._number(high)}"
            if math.isinf(low)
            else (f"{self._number(low)} to {self._number(high)}")
        )

    def _number(self, value: float) -> str:
        if not math.isfinite(value):
            return "unknown"
        widths = [each[1] - each[0] for each in (self.noise, self.sampling) if each]
        width = min((each for each in widths if 0 < each < math.inf), default=None)
        digits = WIDE_DIGITS if width is None else 1 - math.floor(math.log10(width))
        return f"{value:.{max(0, min(digits, MOST_DIGITS))}f}"


def figure_in(figures: Mapping[str, float | None], name: str) -> Figure | None:
    """One out of a record's flat numbers; None where it is not there."""
    if name not in figures:
        return None

    def number(part: str, unknown: float) -> float:
        return _or(figures.get(part), unknown)

    def interval(kind: str) -> Interval | None:
        if f"{name}_{kind}_low" not in figures:
            return None
        ends = ((f"{name}_{kind}_low", -math.inf), (f"{name}_{kind}_high", math.inf))
        low, high = (number(*end) for end in ends)
        return low, high

    tested, cut = number(TESTED, math.nan), number(f"{name}_cut", 0.0)
    is_exact = f"{TESTED}_noise_low" not in figures and math.isfinite(tested)
    return Figure(
        value=number(name, math.nan),
        noise=interval("noise"),
        sampling=interval("sampling"),
        bias=AT_LEAST if cut > 0 else AT_MOST if cut < 0 else "",
        records=round(tested) if is_exact else None,
    )


def in_words(figures: Mapping[str, float | None], name: str) -> str:
    """One of a record's figures for a list of them all; what has no interval and is whole is a count."""
    figure = figure_in(figures, name)
    if figure is None:
        return ""
    if figure.noise is not None or figure.sampling is not None or not math.isfinite(figure.value):
        return figure.brief
    return f"{figure.value:.0f}" if figure.value.is_integer() else f"{figure.value:.4g} (no interval)"


def _or(number: float | None, unknown: float) -> float:
    return unknown if number is None or math.isnan(number) else number


def flat_figures(figures: Mapping[str, Figure]) -> dict[str, float]:
    """As a record carries them."""
    return {part: value for name, each in figures.items() for part, value in each.flat(name).items()}


def names_of_figures(figures: Collection[str]) -> list[str]:
    """Of a record's flat numbers, in their order, those that are no part of another."""
    names = set(figures)
    parts = {f"{name}_{part}" for name in names for part in PARTS}
    return [name for name in figures if name not in parts]


def renamed(figures: Mapping[str, float], *, ending: str) -> dict[str, float]:
    """Each figure under its name and that ending."""
    return {
        new: figures[old]
        for name in names_of_figures(figures)
        for old, new in zip(parts_of(name), parts_of(name + ending), strict=True)
        if old in figures
    }


def parts_of(name: str) -> tuple[str, ...]:
    """The names of a figure's flat numbers, its own first."""
    return (name, *(f"{name}_{part}" for part in PARTS))
