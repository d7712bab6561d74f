"""Rounds that have ended, as a table and as a curve: the same of a federation and of a simulation.

pandas and matplotlib come with the extra `notebook` and are imported where they are used.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crypto.errors import ConfigError
from strategies.figure import Figure, figure_in, names_of_figures, parts_of, renamed
from strategies.phases.arms import ARM, without_arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

APPLIED, USED_UP = "applied", "used-up"  # as in the record of a real round
ALL = "_all"  # ends the name of a figure over all silos, where rounds draw theirs
SILOS = "silos"
OWN = "personal_"  # begins the name of a figure of silos' own models, which a round tests before it trains
FIRST = ("accuracy", "loss")  # figures that come first in a table, after the task's main one


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One round that has ended.

    silos: whose inputs were summed. left_out: silo -> why. figures: of the round's sums, flat;
    `figure` reads one with its intervals. They are of the model that the round *started* from (after
    round - 1): silos test what they receive.
    data_share: 0 to 1, of all training samples. upload_bytes: what one silo sent, mean over `silos`; 0 in a
    simulation, where nothing is sent.
    """

    round: int
    result: str
    reason: str = ""
    data_share: float = 0.0
    silos: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    upload_bytes: int = 0

    def figure(self, name: str) -> Figure | None:
        """One over all hold-outs, with its intervals; None where no sum measured it."""
        return figure_in(self.figures, name)

    @property
    def accuracy(self) -> Figure | None:
        return self.figure("accuracy")

    @property
    def loss(self) -> Figure | None:
        return self.figure("loss")

    def to_json(self) -> dict[str, Any]:
        """One line of rounds.jsonl."""
        return {
            "round": self.round,
            "result": self.result,
            "reason": self.reason,
            **{name: finite(self.figures.get(name)) for name in FIRST},
            "intervals": {name: each.to_json() for name in FIRST if (each := self.figure(name)) is not None},
            "model_after_round": self.round - 1,
            "data_share": self.data_share,
            "silos": list(self.silos),
            "left_out": dict(self.left_out),
            "figures": {name: finite(value) for name, value in self.figures.items()},
            "wall_seconds": round(self.wall_seconds, 6),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResults:
    """The rounds of one job so far.

    main: the figure that the job's task tells first. measured: those figures of a round that are about the
    model it started from; the others are about the round itself. closing: figures of the phases after the
    last round, all of the final model. draws_rounds: whether a round tests on the hold-outs of drawn silos
    alone. evaluations: by round, figures of the model after it over the hold-outs of all silos, and how many
    `silos` there were.
    """

    main: str
    measured: Collection[str]
    draws_rounds: bool = False
    evaluations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    rounds: Sequence[RoundResult]
    closing: Mapping[str, float] = field(default_factory=dict)

    def frame(self) -> DataFrame:
        """A row a round, indexed by `round`; figures are those of the model *after* that round.

        Where rounds draw their silos, `accuracy` is over the hold-outs of the drawn ones, and `accuracy_all`
        over those of all silos; so are all names that end in _all. `accuracy@2` is that of arm 2 of a search,
        and `arm` the one that the other figures are of.

        Columns: result (applied or used-up), reason, silos (how many), left_out (silo: why; ...), data_share
        (0 to 1), seconds, upload_bytes (a silo), then one a figure, the task's main one first, each followed
        by the ends of its intervals (`accuracy_noise_low`, ...); NaN where nothing measured it.
        Raises ConfigError without the extra `notebook`.
        """
        pandas = library("pandas", "a table of results")
        measured = self.figures_by_round()
        found = dict.fromkeys(name for figures in measured.values() for name in figures)
        first = dict.fromkeys(f"{name}{end}" for name in (self.main, *FIRST) for end in ("", ALL))
        ordered = [*first, *sorted(set(names_of_figures(found)) - first.keys())]
        names = [part for name in ordered for part in parts_of(name) if part in found]
        rows = [
            {
                "result": each.result,
                "reason": each.reason,
                "silos": len(each.silos),
                "left_out": "; ".join(f"{silo}: {why}" for silo, why in each.left_out.items()),
                "data_share": each.data_share,
                "seconds": each.wall_seconds,
                "upload_bytes": each.upload_bytes,
                **{name: measured[each.round].get(name, math.nan) for name in names},
            }
            for each in self.rounds
        ]
        index = pandas.Index([each.round for each in self.rounds], name="round", dtype="int64")
        columns = ["result", "reason", "silos", "left_out", "data_share", "seconds", "upload_bytes", *names]
        table: DataFrame = pandas.DataFrame(rows, index=index, columns=columns)
        return table

    def plot(self, figure: str | None = None, *, ax: Axes | None = None) -> Axes:
        """The curve of a figure over the rounds, in the band of its interval; default: the task's main one,
        and beside it that over all silos where rounds draw theirs. ax: where to draw it.

        Raises ConfigError for a figure that no round has, and without the extra `notebook`.
        """
        name, table, measured = figure or self.main, self.frame(), self.figures_by_round()
        known = [each for each in table.columns[7:] if table[each].notna().any()]
        drawn = [name] if figure else [each for each in (name, name + ALL) if each in known]
        if not set(drawn) & set(known):
            raise ConfigError(f"figure {name}: expected one of {', '.join(known) or 'none yet'}")
        if ax is None:
            ax = library("matplotlib.pyplot", "a plot").subplots()[1]
        for curve in drawn:
            points = table[curve].dropna()
            (line,) = ax.plot(points.index, points.to_numpy(), marker="o", markersize=3, label=curve)
            found = {round: figure_in(figures, curve) for round, figures in measured.items()}
            bands = {round: each.band for round, each in found.items() if each is not None and each.band}
            if bands:
                low_R, high_R = zip(*bands.values(), strict=True)
                ax.fill_between(list(bands), low_R, high_R, color=line.get_color(), alpha=0.2)
        if len(ax.lines) > 1:
            ax.legend()
        ax.set_xlabel("round")
        ax.set_ylabel(f"{name} of the model after the round, 95 %")
        ax.xaxis.set_major_locator(library("matplotlib.ticker", "a plot").MaxNLocator(integer=True))
        return ax

    def figures_by_round(self) -> dict[int, dict[str, float]]:
        """Figures by the round after which the model had them; over all silos under names that end in _all
        where rounds draw theirs, so that no curve mixes both."""
        found: dict[int, dict[str, float]] = {each.round: {} for each in self.rounds}
        for each in self.rounds:
            for name, value in each.figures.items():
                is_before = without_arm(name) in self.measured or name == ARM or name.startswith(OWN)
                after = each.round - 1 if is_before else each.round
                if after in found:
                    found[after][name] = value
        of_all = dict(self.evaluations)
        if self.rounds:
            last = self.rounds[-1].round
            of_all[last] = {**of_all.get(last, {}), **self.closing}
        for after in found.keys() & of_all.keys():
            figures = of_all[after].items()
            if self.draws_rounds:
                found[after] |= renamed(dict(figures), ending=ALL)
            else:
                found[after] |= {name: value for name, value in figures if name != SILOS}
        return found


def library(module: str, what: str) -> Any:
    """A module of the extra `notebook`. what: needs it. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what} needs the extra 'notebook' (no {error.name} here): pip install '.[notebook]'"
        ) from None


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity: they are null."""
    return value if value is not None and math.isfinite(value) else None


def spreadsheet_cell(value: object) -> object:
    """Security: a spreadsheet runs what begins so, and words in a table may be anybody's."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
