"""Growth on logarithmic axes, one picture for all series of a kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure  # not pyplot: no window, no state

from bench.report.series import Series


def draw(series: Sequence[Series], *, folder: Path) -> list[Path]:
    """growth-<plot>.png for every `plot` among the series; a straight line of slope 1 is linear growth."""
    by_plot: defaultdict[str, list[Series]] = defaultdict(list)
    for one in series:
        by_plot[one.plot].append(one)
    return [_picture(name, shown, folder) for name, shown in by_plot.items()]


def _picture(name: str, shown: Sequence[Series], folder: Path) -> Path:
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    for one in shown:
        (line,) = axes.loglog(one.sizes, one.values, marker="o", label=f"{one.name}, slope {one.slope:.2f}")
        least, most = one.sizes[0], one.sizes[-1]
        linear = (one.values[-1] * least / most, one.values[-1])
        axes.loglog((least, most), linear, color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xlabel(shown[0].x_label)
    axes.set_ylabel(shown[0].y_label)
    axes.set_title("dotted: linear growth")
    axes.legend()
    path = folder / f"growth-{name}.png"
    figure.savefig(path, dpi=120)
    return path
