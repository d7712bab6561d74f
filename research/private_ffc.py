"""Calibration under noise: what the ridge saves, on scikit-learn's digits, five seeds.

The backbone is trained by SphereFed on samples without protection, or not at all; the calibration runs
over the rest, held by five silos, as a private job: the silos' objective, encoding and noise are the
product's, only masks, which change no sum, are left out. Epsilon is that of the calibration's two sums.
"""

# D = feature width, C = classes, N = samples

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.options import Parser, whole
from bench.rows import Row, table
from chorale.privacy.accountant import epsilon
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.quantity_noise import noise_deviations
from chorale.spec.job_spec import JobSpec, phase_context
from crypto.fixed_point import ring
from research.attacks.digits import Digits, Places, digits, job
from research.attacks.inputs import SEED, encoded, phase_layout, silo_values
from research.attacks.mlp import unit_features
from research.attacks.rounds import trained_rounds
from silo_agent.training.models.starting import initial_state
from strategies.base import TOTAL, Array, Arrays, PhaseContext
from strategies.parts.closing.ffc import CalibratePhase, least_squares, unpacked
from strategies.parts.heads import HEAD

SILOS = 5
HIDDEN = (64, 64)
OPEN_SAMPLES = 600  # of the backbone's training
TEST_SAMPLES = 360
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
ROUNDS = 10
MAX_SEEDS = 50
HALVINGS = 40
TRAINED, RANDOM = "trained by SphereFed", "random"
BACKBONES = (TRAINED, RANDOM)
KEPT_POINTS, LOST_POINTS = 3.0, 10.0
FloatArray = NDArray[np.float64]
Says = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Mean and standard deviation over seeds, on samples that no silo holds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Accuracy:
        return cls(mean=statistics.mean(values), deviation=statistics.stdev(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One epsilon. sigma: standard deviation of the noise in an entry of the sums; ridge: 2 sigma sqrt(D).

    with_ridge, without_ridge: of the least-squares head. installed: of the head that the product leaves in
    the model, with its own ridge and its choice between that head and the one before.
    """

    epsilon: float
    multiplier: float
    sigma: float
    ridge: float
    with_ridge: Accuracy
    without_ridge: Accuracy
    installed: Accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """before: of the frozen head. no_noise: calibrated with the ridge of a job without privacy."""

    backbone: str
    samples: int
    seeds: int
    before: Accuracy
    no_noise: Accuracy
    levels: tuple[Level, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    figures = [measure(backbone, seeds=range(1, options.seeds + 1), say=_say) for backbone in BACKBONES]
    if options.plot:
        draw(figures, options.plot)
    found = rows(figures[0])
    if options.json:
        print(json.dumps({"figures": list(map(asdict, figures)), "rows": [row.to_json() for row in found]}))
    else:
        print("\n\n".join(map(markdown, figures)))
        print(f"\n{table(found)}")
    return 0


def measure(
    backbone: str,
    *,
    seeds: Sequence[int],
    epsilons: Sequence[float] = EPSILONS,
    rounds: int = ROUNDS,
    say: Says = lambda line: None,
) -> Figure:
    """Every epsilon on every seed; two seeds or more."""
    runs = []
    for seed in seeds:
        runs.append(_Run(backbone, seed, rounds=rounds))
        say(f"{backbone} backbone, seed {seed}: {runs[-1].before:.3f} before, {runs[-1].no_noise:.3f} after")
    return Figure(
        backbone=backbone,
        samples=runs[0].samples,
        seeds=len(runs),
        before=Accuracy.of([run.before for run in runs]),
        no_noise=Accuracy.of([run.no_noise for run in runs]),
        levels=tuple(_level(target, runs) for target in epsilons),
    )


def rows(figure: Figure) -> list[Row]:
    """The shape: what noise costs with the ridge, in points at epsilon 1 and more, and without."""
    above = [level for level in figure.levels if level.epsilon >= 1.0]
    costs = [100.0 * (figure.no_noise.mean - level.with_ridge.mean) for level in above]
    least = min(figure.levels, key=lambda level: level.epsilon)
    saved = 100.0 * (least.with_ridge.mean - least.without_ridge.mean)
    return [
        Row(
            name="ffc, epsilon 1 to 8: points lost to noise with the ridge",
            target=KEPT_POINTS,
            value=max(costs),
            unit="points",
        ),
        Row(
            name=f"ffc, epsilon {least.epsilon:g}: points that the ridge saves",
            target=LOST_POINTS,
            value=saved,
            unit="points",
            is_at_most=False,
        ),
    ]


def markdown(figure: Figure) -> str:
    """Accuracies in percent, mean and standard deviation over seeds."""
    lines = [
        f"Backbone {figure.backbone}, {figure.samples} samples, {figure.seeds} seeds; frozen head "
        f"{_percent(figure.before)}, calibrated without noise {_percent(figure.no_noise)}.",
        "",
        "| epsilon | multiplier | sigma | 2 sigma sqrt(D) | with that ridge | with ridge 0 | installed |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.epsilon:g} | {one.multiplier:.3g} | {one.sigma:.3g} | {one.ridge:.3g} "
        f"| {_percent(one.with_ridge)} | {_percent(one.without_ridge)} | {_percent(one.installed)} |"
        for one in figure.levels
    ]
    return "\n".join(lines)


def draw(figures: Sequence[Figure], path: Path) -> None:
    """Accuracy over epsilon, one panel for each backbone."""
    from matplotlib.figure import Figure as Picture  # not pyplot: no window, no state

    picture = Picture(figsize=(8, 3.4), layout="constrained")
    for axes, figure in zip(picture.subplots(1, len(figures), sharey=True), figures, strict=True):
        for name, label in (("with_ridge", "ridge 2 sigma sqrt(D)"), ("without_ridge", "ridge 0")):
            means = [getattr(level, name).mean for level in figure.levels]
            deviations = [getattr(level, name).deviation for level in figure.levels]
            epsilons = [level.epsilon for level in figure.levels]
            axes.errorbar(epsilons, means, yerr=deviations, marker="o", capsize=3, label=label)
        axes.axhline(figure.no_noise.mean, linestyle=":", color="black", label="no noise")
        axes.set_xscale("log", base=2)
        axes.set_xticks([level.epsilon for level in figure.levels])
        axes.set_xticklabels([f"{level.epsilon:g}" for level in figure.levels])
        axes.set_xlabel("epsilon at delta 1e-5")
        axes.set_title(f"backbone: {figure.backbone}", fontsize=10)
    picture.axes[0].set_ylabel("accuracy")
    picture.axes[0].legend(loc="lower right")
    # without the date the same figures give the same file
    picture.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else None)


class _Run:
    """One seed's backbone and silos; the sums of the calibration without noise are made once."""

    def __init__(self, backbone: str, seed: int, *, rounds: int) -> None:
        data = digits()
        self._test_N, open_N, own_N = np.split(
            data.shuffled(seed), [TEST_SAMPLES, TEST_SAMPLES + OPEN_SAMPLES]
        )
        self._spec = _job(None, rounds=rounds, seed=seed)
        self._start: Arrays = _trained(backbone, self._spec, data, open_N)
        self.samples = own_N.size
        self.state: Arrays = {**self._start, TOTAL: np.array(own_N.size)}
        self._values = [
            silo_values(
                self._spec, "calibrate", self.state, data.silo(part), members=SILOS, place=place, round=rounds
            )
            for place, part in enumerate(np.array_split(own_N, SILOS))
        ]
        self._unit_ND = unit_features(self.state, data.images(self._test_N))
        self._label_N = data.labels(self._test_N)
        self.before = self.accuracy(self.state[HEAD])
        plain = CalibratePhase().next_state(self._context(self._spec), self._sums(self._spec)).state
        assert plain is not None
        self.no_noise = self.accuracy(
            self.least_squares(self._sums(self._spec), CalibratePhase(), self._spec)
        )

    def noised(self, multiplier: float) -> tuple[float, float, float]:
        """Accuracies with the ridge, without, and as installed, of one and the same noised sum."""
        spec = self.private(multiplier)
        sums, phase = self._sums(spec), CalibratePhase()
        installed = phase.next_state(self._context(spec), sums).state
        assert installed is not None
        return (
            self.accuracy(self.least_squares(sums, phase, spec)),
            self.accuracy(self.least_squares(sums, CalibratePhase(ridge=0.0), spec)),
            self.accuracy(installed[HEAD]),
        )

    def least_squares(self, sums: Mapping[str, Array], phase: CalibratePhase, spec: JobSpec) -> FloatArray:
        gram_DD = unpacked(sums["gram"], HIDDEN[-1])
        ridge = phase.ridge_under(self._context(spec))
        return least_squares(gram_DD, np.asarray(sums["moment"], np.float64), ridge=ridge).T

    def accuracy(self, head_CD: Array) -> float:
        guessed_N = (self._unit_ND @ head_CD.astype(np.float64).T).argmax(axis=1)
        return float(np.mean(guessed_N == self._label_N))

    def private(self, multiplier: float) -> JobSpec:
        return _job(multiplier, rounds=self._spec.rounds, seed=self._spec.seed)

    def sigma(self, multiplier: float) -> float:
        return self._context(self.private(multiplier)).noise["gram"]

    def _sums(self, spec: JobSpec) -> dict[str, Array]:
        layout = phase_layout(spec, "calibrate", self.state, members=SILOS)
        total = ring.zeros(layout)
        for values in self._values:
            ring.add_into(total, encoded(values, layout).vectors)
        return dict(ring.decode(total, layout=layout))

    def _context(self, spec: JobSpec) -> PhaseContext:
        layout = phase_layout(spec, "calibrate", self.state, members=SILOS)
        context = phase_context(spec, spec.rounds, dict(self.state), SILOS, public_seed=SEED)
        return replace(context, noise=noise_deviations(layout.quantities, SILOS))


def _trained(backbone: str, spec: JobSpec, data: Digits, open_N: Places) -> Arrays:
    state: Arrays = initial_state(spec)
    if backbone == TRAINED:
        for after in trained_rounds(spec, data, np.array_split(open_N, SILOS)):
            state = after
    return state


def _job(multiplier: float | None, *, rounds: int, seed: int) -> JobSpec:
    privacy = (
        None
        if multiplier is None
        else {
            "delta": DELTA,
            # asked for by every private job; nothing is trained in it
            "records": {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.1},
            "statistics_noise_multiplier": multiplier,
        }
    )
    training = {"local_epochs": 3, "batch_size": 16, "learning_rate": 3.0, "momentum": 0.9}
    return job(
        "spherefed",
        silos=SILOS,
        hidden=HIDDEN,
        training=training,
        rounds=rounds,
        privacy=privacy,
        seed=seed,
        model_seed=seed,
    )


def _level(target: float, runs: Sequence[_Run]) -> Level:
    multiplier = multiplier_for(target)
    with_ridge, without, installed = zip(*(run.noised(multiplier) for run in runs), strict=True)
    sigma = runs[0].sigma(multiplier)
    return Level(
        epsilon=target,
        multiplier=multiplier,
        sigma=sigma,
        ridge=2.0 * sigma * math.sqrt(HIDDEN[-1]),
        with_ridge=Accuracy.of(with_ridge),
        without_ridge=Accuracy.of(without),
        installed=Accuracy.of(installed),
    )


@cache
def multiplier_for(target: float) -> float:
    """The least at which one calibration costs no more; a whole job's is chorale/privacy/solve.py's."""
    low, high = 0.01, 100.0
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if calibration_epsilon(middle) <= target else (middle, high)
    return high


def calibration_epsilon(multiplier: float) -> float:
    """Of the two sums together, at DELTA, for one record."""
    spec = _job(multiplier, rounds=1, seed=0)
    state = {**initial_state(spec), TOTAL: np.array(1)}
    return epsilon(JobReleases(spec, state).cost("calibrate", SILOS), DELTA)


def _percent(accuracy: Accuracy) -> str:
    return f"{100 * accuracy.mean:.1f} +- {100 * accuracy.deviation:.1f}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("private_ffc", __doc__, package="research")
    parser.add_argument("--seeds", type=whole(2, MAX_SEEDS), default=5, help="runs of each backbone")
    parser.add_argument("--plot", type=Path, help="write the figure to this file, .svg or .png")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
