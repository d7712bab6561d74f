"""Two pictures of a report: accuracy by round, and paired differences to FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot: no window, no state

from research.accuracy.arms import BASELINE, CONTROLS, Arm
from research.accuracy.report import Report

ROUNDS, DIFFERENCES = "rounds", "differences"
PANEL_INCHES = 4.2


def draw(report: Report, *, folder: Path, prefix: str) -> list[Path]:
    """<prefix>-rounds.svg and <prefix>-differences.svg. The same report gives the same bytes."""
    pictures = {ROUNDS: _rounds(report), DIFFERENCES: _differences(report)}
    return [_saved(picture, folder / f"{prefix}-{name}.svg") for name, picture in pictures.items()]


def _rounds(report: Report) -> Figure:
    """Methods alone: a control's line lies on its method's."""
    held = {control.control for control in CONTROLS}
    shown = [one for one in report.arms if one.name not in held]
    picture, panels = _panels(report, height=3.8, is_shared=True)
    for axes, setting in zip(panels, report.settings, strict=True):
        for one in shown:
            by_round = report.cell(setting, one.name).by_round
            axes.plot(range(1, len(by_round) + 1), by_round, label=one.title, linewidth=1.2)
        axes.set_xlabel("round")
        axes.set_title(setting, fontsize=10)
    panels[0].set_ylabel("accuracy on the hold-out, mean of the seeds")
    panels[-1].legend(fontsize=7, loc="lower right")
    return picture


def _differences(report: Report) -> Figure:
    """Every method and control: mean and standard error, and each seed as a dot."""
    shown = [one for one in report.arms if one.name != BASELINE]
    picture, panels = _panels(report, height=0.28 * len(shown) + 1.2, is_shared=True)
    for axes, setting in zip(panels, report.settings, strict=True):
        _difference_bars(axes, report, setting, shown)
        axes.set_title(setting, fontsize=10)
        axes.set_xlabel("points above FedAvg")
    return picture


def _difference_bars(axes: Axes, report: Report, setting: str, shown: Sequence[Arm]) -> None:
    reference = report.cell(setting, BASELINE).accuracy
    places = range(len(shown), 0, -1)
    for place, one in zip(places, shown, strict=True):
        found = report.difference(setting, one.name)
        own = report.cell(setting, one.name).accuracy
        seeds = [100.0 * (mine - theirs) for mine, theirs in zip(own, reference, strict=True)]
        axes.plot(seeds, [place] * len(seeds), ".", color="0.6", markersize=4)
        axes.errorbar(found.mean, place, xerr=found.error, fmt="o", color="C0", markersize=4, capsize=3)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_yticks(list(places), [one.title for one in shown], fontsize=7)


def _panels(report: Report, *, height: float, is_shared: bool) -> tuple[Figure, list[Axes]]:
    count = len(report.settings)
    picture = Figure(figsize=(PANEL_INCHES * count, height), layout="constrained")
    return picture, list(picture.subplots(1, count, sharey=is_shared, squeeze=False)[0])


def _saved(picture: Figure, path: Path) -> Path:
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "evidence"}):  # ids by content, not by chance
        picture.savefig(path, metadata={"Date": None})
    return path
