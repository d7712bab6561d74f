"""What a benchmark printed, and what is to be said of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bench.report.series import Series
from bench.rows import RATIO, Row, table


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A name for `make bench` and the module that measures it."""

    name: str
    module: str
    options: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return " ".join(("python -m", self.module, *self.options, "--json"))


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one benchmark: rows, or the reason why there are none."""

    benchmark: Benchmark
    started: datetime = field(kw_only=True)
    rows: tuple[Row, ...] = ()
    series: tuple[Series, ...] = ()
    printed: Mapping[str, Any] = field(default_factory=dict)
    skipped: str = ""
    failed: str = ""

    @classmethod
    def from_output(cls, benchmark: Benchmark, output: str, *, started: datetime) -> Result:
        """The output is the benchmark's JSON object."""
        try:
            printed = json.loads(output)
            if "skipped" in printed:
                return cls(benchmark, started=started, skipped=str(printed["skipped"]), printed=printed)
            rows = tuple(Row.from_json(row) for row in printed["rows"])
            series = tuple(Series.from_json(one) for one in printed.get("series", ()))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls(benchmark, started=started, failed="it printed no JSON object with rows")
        return cls(benchmark, started=started, rows=rows, series=series, printed=printed)

    @property
    def is_measured(self) -> bool:
        return not self.skipped and not self.failed

    @property
    def ratios(self) -> dict[str, float]:
        """Of each row that machines can be compared by."""
        return {row.name: row.value for row in self.rows if row.unit == RATIO}

    def to_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark.name,
            "command": self.benchmark.command,
            "started": self.started.isoformat(timespec="seconds"),
            "skipped": self.skipped,
            "failed": self.failed,
            "result": dict(self.printed),
        }


def judged(results: Sequence[Result], *, committed: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A sentence for every failed benchmark, missed target, and ratio that is worse or no longer there."""
    complaints = []
    for result in results:
        name, earlier = result.benchmark.name, committed.get(result.benchmark.name, {})
        if result.failed:
            complaints.append(f"{name}: failed, {result.failed}")
        if not result.is_measured:
            continue
        for row in result.rows:
            if not row.holds:
                complaints.append(f"{name}: {row.name}: target missed, {row.comparison}")
            if row.name in earlier and row.is_worse_than(earlier[row.name]):
                was = f"{row.value:.4g} {row.unit} after {earlier[row.name]:.4g} {row.unit}"
                complaints.append(f"{name}: {row.name}: worse by more than 30 %, {was}")
        gone = sorted(earlier.keys() - result.ratios.keys())
        complaints += [f"{name}: {lost}: a committed ratio that is no longer measured" for lost in gone]
    return complaints


def markdown(results: Sequence[Result]) -> str:
    """Every benchmark with its table, or with the reason why it has none."""
    return "\n\n".join(f"### {result.benchmark.name}\n\n{section(result)}" for result in results)


def section(result: Result) -> str:
    """The command, then the tables or the reason. The second one is the benchmark's own."""
    lines = [f"`{result.benchmark.command}`", ""]
    if result.skipped:
        lines.append(f"**skipped**: {result.skipped}")
    elif result.failed:
        lines.append(f"**failed**: {result.failed}")
    else:
        lines.append(table(result.rows) if result.rows else "It has no target.")
        if "table" in result.printed:
            lines += ["", str(result.printed["table"])]
    return "\n".join(lines)
