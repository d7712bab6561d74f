"""A picture of a report: accuracy by learning rate, methods beside their controls."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot: no window, no state

from research.accuracy.arms import ARMS, CONTRASTS
from research.accuracy.paired import ALPHA, t_point
from research.accuracy.report import Report

PANEL_INCHES = 4.2


def draw(report: Report, *, folder: Path) -> Path | None:
    """evidence-<suite>.svg, of suites with common rates. The same report gives the same bytes."""
    if not report.common:
        return None
    picture = Figure(figsize=(PANEL_INCHES * len(report.settings), 4.5), layout="constrained")
    panels = list(picture.subplots(1, len(report.settings), sharey=True, squeeze=False)[0])
    for axes, setting in zip(panels, report.settings, strict=True):
        _curves(axes, report, setting)
        axes.set_title(setting, fontsize=10)
        axes.set_xlabel("learning rate")
    panels[0].set_ylabel("accuracy, mean and 95 % interval")
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=5)
    path = folder / f"evidence-{report.suite}.svg"
    with rc_context({"svg.hashsalt": "evidence"}):  # ids by content, not by chance
        picture.savefig(path, metadata={"Date": None})
    return path


def _curves(axes: Axes, report: Report, setting: str) -> None:
    """A control has its method's color and a broken line, a second one a dotted line."""
    controls = {one.control: one.method for one in CONTRASTS}
    colors: dict[str, str] = {}
    broken: dict[str, list[str]] = {}  # by method, the lines that are left for its controls
    for name in report.common_arms:  # of others a tuned rate may be among the common ones
        cells = [report.cells.get((setting, name, rate, ARMS[name].published)) for rate in report.common]
        counted = [
            (cell, len(cell.accuracy)) for cell in cells if cell is not None and len(cell.accuracy) > 1
        ]
        if not counted:
            continue
        method = controls.get(name, name)
        color = colors.setdefault(method, f"C{len(colors)}")
        line = broken.setdefault(method, ["--", ":"]).pop(0) if name in controls else "-"
        axes.errorbar(
            [cell.rate for cell, _ in counted],
            [cell.mean for cell, _ in counted],
            yerr=[t_point(ALPHA, count) * cell.deviation / math.sqrt(count) for cell, count in counted],
            color=color,
            linestyle=line,
            label=ARMS[name].title,
            linewidth=1.2,
            capsize=2,
        )
    axes.set_xscale("log")
