"""What the finished runs say: one line for each setting, the targets, and the table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.rows import Row
from research.accuracy.paired import Difference, paired
from research.accuracy.tuning import Choice
from research.private_sum.arms import ARMS, CENTRAL, NONE, SILO, SUM, TITLES, Setting

LEAST_GAIN = 10.0  # points over noise at every silo, MNIST, 20 silos of 200 records, epsilon 1
MOST_LOSS = 4.0  # points below the curator
TITLES_OF_ARMS = {SILO: "`noise: silo`", SUM: "`noise: sum`", CENTRAL: "one curator", NONE: "no privacy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """accuracy: by arm, the final accuracies by seed, as shares. choices: the rates, by arm."""

    setting: Setting
    accuracy: Mapping[str, Sequence[float]]
    choices: Mapping[str, Choice]

    def mean(self, arm: str) -> float:
        """In percent."""
        return 100.0 * statistics.mean(self.accuracy[arm])

    def against(self, arm: str) -> Difference | None:
        """Noise in the sum against another arm, by seed; None where either was not measured."""
        if not {SUM, arm} <= self.accuracy.keys():
            return None
        return paired(self.accuracy[SUM], self.accuracy[arm])

    def to_json(self) -> dict[str, Any]:
        return {
            "data": self.setting.data,
            "silos": self.setting.silos,
            "records": self.setting.records,
            "epsilon": self.setting.epsilon,
            "accuracy": {arm: list(each) for arm, each in self.accuracy.items()},
            "mean": {arm: self.mean(arm) for arm in self.accuracy},
            "rates": {arm: choice.rate for arm, choice in self.choices.items()},
            "rates_at_the_edge": [arm for arm, choice in self.choices.items() if choice.is_at_an_end],
        }


def rows(lines: Sequence[Line]) -> list[Row]:
    """What noise in the sum has to reach at epsilon 1; nothing of settings without it."""
    found: list[Row] = []
    for line in lines:
        over, under = line.against(SILO), line.against(CENTRAL)
        if over is None or under is None:
            continue
        name = line.setting.name
        is_first = (line.setting.data, line.setting.silos, line.setting.records) == ("mnist", 20, 200)
        if is_first and line.setting.epsilon == 1.0:
            found.append(_least(f"{name}: points above noise: silo", LEAST_GAIN, over.mean))
        if line.setting.data != "cifar10":
            found.append(
                Row(
                    name=f"{name}: points below one curator",
                    target=MOST_LOSS,
                    value=-under.mean,
                    unit="points",
                )
            )
        found.append(
            Row(name=f"{name}: seeds below noise: silo", target=0.0, value=float(over.lost), unit="seeds")
        )
    return found


def table(lines: Sequence[Line]) -> str:
    """Accuracy on test samples in percent, mean and standard deviation over the seeds; paired gain."""
    text = [
        f"| data | silos x records | epsilon | {' | '.join(TITLES_OF_ARMS[arm] for arm in ARMS)} "
        "| sum - silo | sum - curator |",
        f"|{'---|' * (len(ARMS) + 5)}",
    ]
    for line in lines:
        cells = [_cell(line.accuracy.get(arm)) for arm in ARMS]
        gains = [_gain(line.against(SILO)), _gain(line.against(CENTRAL))]
        one = line.setting
        text.append(
            f"| {TITLES[one.data]} | {one.silos} x {one.records} | {one.epsilon:g} "
            f"| {' | '.join([*cells, *gains])} |"
        )
    return "\n".join(text)


def _least(name: str, target: float, value: float) -> Row:
    return Row(name=name, target=target, value=value, unit="points", is_at_most=False)


def _cell(accuracy: Sequence[float] | None) -> str:
    if accuracy is None:
        return ""
    return f"{100 * statistics.mean(accuracy):.1f} +- {100 * statistics.stdev(accuracy):.1f}"


def _gain(found: Difference | None) -> str:
    return "" if found is None else f"{found.mean:+.1f}, {found.won} of {found.seeds} seeds"
