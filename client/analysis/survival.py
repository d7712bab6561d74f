"""Kaplan-Meier curves and the log-rank test, from the published table of bins, endings and groups.

The estimand is that of pooled records with times binned alike. In each bin events come before the records
that are censored in it, which are at risk in all of it.

T = published bins, R = published parts of the group, 1 without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from chorale.results import library
from chorale.spec.analyses.survival_spec import SurvivalSpec
from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.coefficients import model_parts_in
from client.analysis.parts import OVERALL, Part, in_words, published_parts
from client.analysis.published import MOST_RECORDS, Rows, counted_in, rows_in
from client.analysis.records import FIELDS, Record
from client.analysis.tables import Line, Table
from client.analysis.tails import above, reach
from client.analysis.text import plain_text
from crypto.errors import ConfigError
from strategies.analysis.merging import added, are_bins, first_at_risk, split_bins
from strategies.analysis.model_state import MODEL_PARTS
from strategies.analysis.survival import IS_SHOWN, SURVIVAL_COUNTS
from strategies.base import Array, Arrays, array_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EVENT = 1
WITHHELD = "Withheld: all records hold fewer than {least} events or censored records."
METHOD = (
    "Survival (Kaplan-Meier) at the end of each bin, of pooled records with times binned alike: those "
    "censored are at risk in each bin that begins before theirs ends: {censored}. Records whose time is "
    "beyond the last edge are left out."
)
ERRORS = "SE by Greenwood's formula; the interval is that of log(-log(survival))."
MERGED = "Bins were merged: in a finer one a part of the group has fewer than {least} events."
GROUP_MERGED = "Merged: a part of the group holds fewer than {least} events or censored records."
LOG_RANK = (
    "Log-rank test over these bins, hypergeometric variance: chi-squared {statistic:.3f}, degrees of freedom "
    "{freedom}, p {p}."
)
ONE_BIN = "One bin is left: the test compares how many have the event, not when."
NOT_COMPARED = "Not compared: {group} has one published part."
NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Of events. at_risk: when it begins. censored: whose bin ends in it. survival: at its end, with its
    standard error and 95 % interval."""

    part: Part
    at_risk: int
    events: int
    censored: int
    survival: float
    error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Of all records, or of a part of the group."""

    label: str
    is_merged: bool
    bins: tuple[Bin, ...]

    @property
    def records(self) -> int:
        return self.bins[0].at_risk

    @property
    def median(self) -> Part | None:
        """The bin in which half of the records have had the event; None: not reached."""
        return next((each.part for each in self.bins if each.survival <= 0.5), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRank:
    statistic: float
    freedom: int
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalCurves:
    """curves: none where they are withheld. censored: their bins. log_rank: None of fewer than two."""

    spec: AnalysisSpec
    survival: SurvivalSpec
    records: int
    curves: tuple[Curve, ...]
    censored: tuple[Part, ...]
    log_rank: LogRank | None

    @classmethod
    def of(cls, spec: AnalysisSpec, state: Arrays) -> Self:
        """Raises ConfigError for a job without survival curves, and a state that its rules cannot give."""
        places = spec.tables.survival
        if spec.survival is None or places is None:
            raise ConfigError(f"job {spec.name}: expected an analysis with survival curves")
        rows = rows_in(state, spec)
        if (shown := int(array_in(state, IS_SHOWN, (), np.uint8))) > 1:
            raise ConfigError(f"{IS_SHOWN}: expected 0 or 1, got {shown}")
        curves, censored = tuple[Curve, ...](), tuple[Part, ...]()
        if shown:
            parts_of = model_parts_in(spec, state)
            bins = parts_of[places.time]
            if not are_bins(bins):
                raise ConfigError(f"{MODEL_PARTS}{places.time}: expected bins of each ending")
            table_TR = _table_in(state, spec, rows, parts_of)
            censored, of_events = (
                published_parts(spec.columns[places.time], each) for each in split_bins(bins)
            )
            names: Sequence[tuple[str, bool]] = [(OVERALL, False)]
            if places.group is not None:
                parts_R = published_parts(spec.columns[places.group], parts_of[places.group])
                names = [(part.label, part.is_merged) for part in parts_R]
            curves = tuple(
                Curve(label=label, is_merged=is_merged, bins=tuple(_bins(of_events, bins, count_T)))
                for (label, is_merged), count_T in zip(names, table_TR.T.tolist(), strict=True)
            )
        return cls(
            spec=spec,
            survival=spec.survival,
            records=rows.counts_R[0],
            curves=curves,
            censored=censored,
            log_rank=log_rank(curves) if len(curves) > 1 else None,
        )

    @property
    def title(self) -> str:
        of_status = next(column for column in self.spec.columns if column.name == self.survival.status)
        assert of_status.categories is not None
        by = "" if self.survival.group is None else f" by {self.survival.group}"
        ending = f"{of_status.name} {of_status.categories[EVENT]}"
        return f"survival, {self.survival.time} to {ending}{by}: {self.records} complete records"

    def table(self) -> Table:
        """As journals print it."""
        numbers: dict[str, int] = {}
        lines = []
        for curve in self.curves:
            notes = [GROUP_MERGED.format(least=self.spec.min_cell)] if curve.is_merged else []
            marks = tuple(numbers.setdefault(note, len(numbers) + 1) for note in notes)
            title = f"{curve.label} (n = {curve.records})"
            lines.append(Line(label=title, level=0, cells=("",) * 6, notes=marks))
            for each in curve.bins:
                notes = [self._merged] if each.part.is_merged else []
                marks = tuple(numbers.setdefault(note, len(numbers) + 1) for note in notes)
                counts = (str(each.at_risk), str(each.events), str(each.censored))
                interval = f"{each.low:.3f} to {each.high:.3f}"
                cells = (*counts, f"{each.survival:.3f}", f"{each.error:.3f}", interval)
                lines.append(Line(label=each.part.label, level=1, cells=cells, notes=marks))
            median = NOT_REACHED if curve.median is None else f"in {curve.median.label}"
            lines.append(Line(label="median survival", level=1, cells=("", "", "", median, "", "")))
        return Table(
            title=self.title,
            heads=("at risk", "events", "censored", "survival", "SE", "95 % interval"),
            lines=tuple(lines),
            notes=(*numbers, *self._notes()),
        )

    def to_text(self) -> str:
        """The table in aligned columns, for a terminal."""
        return plain_text(self.table())

    def figures(self) -> Iterator[Record]:
        """A row a figure, as of the other results: the bin stands in place of the part."""
        if not self.curves:
            yield self._record("survival", None, note=self.in_words)
        for curve in self.curves:
            for each in curve.bins:
                figures = {
                    "at risk": each.at_risk,
                    "events": each.events,
                    "censored": each.censored,
                    "survival": each.survival,
                    "survival, standard error": each.error,
                    "survival, lower end": each.low,
                    "survival, upper end": each.high,
                }
                note = "merged" if each.part.is_merged else ""
                for figure, value in figures.items():
                    yield self._record(figure, value, part=each.part.label, group=curve.label, note=note)
            ends = (None, None) if curve.median is None else (curve.median.low, curve.median.high)
            note = NOT_REACHED if curve.median is None else "ends of its bin"
            for figure, end in zip(("median survival, from", "median survival, to"), ends, strict=True):
                yield self._record(figure, end, group=curve.label, note=note)
        if self.log_rank is not None:
            note = f"degrees of freedom: {self.log_rank.freedom}"
            yield self._record("log-rank chi-squared", self.log_rank.statistic, note=note)
            yield self._record("log-rank p", self.log_rank.p, note=note)

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """The curves as steps at the ends of bins. Raises ConfigError without the extra `notebook`."""
        if ax is None:
            ax = library("matplotlib.pyplot", "a plot").subplots()[1]
        for curve in self.curves:
            times, survival = zip(*steps(curve), strict=True)
            # matplotlib would read what stands between dollars as a formula
            ax.step(times, survival, where="post", label=curve.label.replace("$", r"\$"))
        ax.set_ylim(0, 1)
        ax.set_xlabel(self.time_in_words.replace("$", r"\$"))
        ax.set_ylabel("survival")
        if len(self.curves) > 1:
            ax.legend()
        return ax

    @property
    def in_words(self) -> str:
        """Why there are no curves; else empty."""
        return "" if self.curves else WITHHELD.format(least=self.spec.min_cell)

    @property
    def time_in_words(self) -> str:
        return self.survival.time + (f" ({self._unit})" if self._unit else "")

    @property
    def _unit(self) -> str:
        time = next(column for column in self.spec.columns if column.name == self.survival.time)
        return time.unit or ""

    @property
    def _merged(self) -> str:
        return MERGED.format(least=self.spec.min_cell)

    def _record(
        self, figure: str, value: float | None, *, part: str = "", group: str = "", note: str = ""
    ) -> Record:
        unit = self._unit if figure.startswith("median") else ""
        row = (self.survival.time, figure, part, group, value, unit, note)
        return dict(zip(FIELDS, row, strict=True))

    def _notes(self) -> Iterator[str]:
        if not self.curves:
            yield self.in_words
            return
        yield METHOD.format(censored=in_words(self.censored))
        yield ERRORS
        if self.log_rank is not None:
            p = "< 0.001" if self.log_rank.p < 0.001 else f"= {self.log_rank.p:.3f}"
            statistic, freedom = self.log_rank.statistic, self.log_rank.freedom
            yield LOG_RANK.format(statistic=statistic, freedom=freedom, p=p)
            if len(self.curves[0].bins) == 1:
                yield ONE_BIN
        elif self.survival.group is not None:
            yield NOT_COMPARED.format(group=self.survival.group)


def steps(curve: Curve) -> Iterator[tuple[float, float]]:
    """Times, and survival from each on."""
    yield 0.0, 1.0
    for each in curve.bins:
        assert each.part.high is not None
        yield each.part.high, each.survival


def log_rank(curves: Sequence[Curve]) -> LogRank:
    """Source: Mantel 1966, with the hypergeometric covariance of all groups but the last."""
    left = len(curves) - 1
    apart_R, variance_RR = np.zeros(left), np.zeros((left, left))
    for alike in zip(*(curve.bins for curve in curves), strict=True):
        at_risk, events = (
            float(sum(counts)) for counts in zip(*((b.at_risk, b.events) for b in alike), strict=True)
        )
        share_R = np.array([each.at_risk for each in alike[:left]]) / at_risk
        apart_R += np.array([each.events for each in alike[:left]]) - events * share_R
        scale = events * (at_risk - events) / (at_risk - 1.0)
        variance_RR += scale * (np.diag(share_R) - np.outer(share_R, share_R))
    statistic = float(apart_R @ np.linalg.solve(variance_RR, apart_R))
    return LogRank(statistic=statistic, freedom=left, p=above(statistic, left))


def _bins(parts: Sequence[Part], bins: Sequence[int], count_T: Sequence[int]) -> Iterator[Bin]:
    """Those who are censored last are at risk in all bins, and each holds events: survival is neither 0 nor 1
    after the first one."""
    first = len(count_T) - len(parts)
    at_risk, survival, squared = sum(count_T), 1.0, 0.0
    ended = [*first_at_risk(bins), first]  # bins of those censored that end before it, and before the end
    for place, (part, events) in enumerate(zip(parts, count_T[first:], strict=True)):
        survival *= (at_risk - events) / at_risk
        squared += events / (at_risk * (at_risk - events))
        reached = reach(None) * math.sqrt(squared) / abs(math.log(survival))
        censored = sum(count_T[ended[place] : ended[place + 1]])
        yield Bin(
            part=part,
            at_risk=at_risk,
            events=events,
            censored=censored,
            survival=survival,
            error=survival * math.sqrt(squared),
            low=survival ** math.exp(reached),
            high=survival ** math.exp(-reached),
        )
        at_risk -= censored + events


def _table_in(state: Arrays, spec: AnalysisSpec, rows: Rows, parts_of: Mapping[int, Sequence[int]]) -> Array:
    """Raises ConfigError, also where it does not fit the counts of its columns. Shapes: -> (T, R)."""
    shape = tuple(max(parts) + 1 for parts in parts_of.values())
    table_TR = array_in(state, SURVIVAL_COUNTS, (shape[0], math.prod(shape[1:])), np.int64)
    if table_TR.min() < spec.min_cell or table_TR.max() > MOST_RECORDS:
        raise ConfigError(f"{SURVIVAL_COUNTS}: expected counts from {spec.min_cell} to {MOST_RECORDS}")
    for (place, parts), found in zip(
        parts_of.items(), (table_TR.sum(axis=1), table_TR.sum(axis=0)), strict=False
    ):
        counted = counted_in(state, spec, place, rows)
        into = dict(zip(counted.parts_P, parts, strict=True))
        if any(into[part] != published for part, published in zip(counted.parts_P, parts, strict=True)):
            raise ConfigError(
                f"{MODEL_PARTS}{place}: expected parts that are made of those of the column by itself"
            )
        of_column = added(np.array(counted.counts_Q), [into[part] for part in range(len(into))])
        if of_column.tolist() != found.tolist():
            raise ConfigError(f"{SURVIVAL_COUNTS}: expected cells that add up to the counts of each column")
    return table_TR
