"""A task of another distribution, as a job states it: both sides lay out its sums and read its figures
without its code.

What the sums tell of a silo's data only the code says; each silo compares them with its own copy's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from crypto.errors import ConfigError
from strategies.tasks.base import LOSS_SUM, TESTED, DeclaredTask, Ratio, Sum, Target, TaskSizes

MAX_SUMMED = 1 << 20  # numbers in all sums of a task together
OF_EVERY_TASK = (TESTED, LOSS_SUM)
Ratios = Mapping[str, tuple[str, str]]


class StatedTask(DeclaredTask):
    """word: name of its entry point. target: None in a job file that a person wrote, and then it may have
    classes. sums: what it sums beside `tested` and `loss_sum`. ratios: its metrics, each one sum divided by
    another."""

    word = "stated"

    def __init__(
        self,
        sizes: TaskSizes,
        *,
        word: str,
        target: Target | None,
        sums: tuple[Sum, ...],
        ratios: Ratios,
        is_mean: bool,
    ) -> None:
        """Raises ConfigError for sums and ratios that do not fit together."""
        super().__init__(sizes)
        self.word, self.is_mean, self.main = word, is_mean, next(iter(ratios), "loss")
        self._target, self.sums, self._ratios = target, sums, ratios
        classes = Target(is_whole=True, low=0, high=sizes.classes - 1)
        self.has_classes = sizes.classes > 1 and target in (None, classes)
        _check(self.round_sums, ratios)

    @property
    def target(self) -> Target:
        return self._target or Target()

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        return (*self.sums, *OF_EVERY_TASK)

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """Its metrics. What bounds a record's part of one is known of a count alone that never exceeds the
        other; any other has no range, and no interval for new records."""
        at_most = {each.name: each.at_most for each in self.sums}
        return {
            name: Ratio(above=above, below=below)
            if at_most.get(above) == below
            else Ratio(above=above, below=below, low=-math.inf, high=math.inf)
            for name, (above, below) in self._ratios.items()
        }


def _check(sums: tuple[Sum, ...], ratios: Ratios) -> None:
    by_name = {each.name: each for each in sums}
    if len(by_name) != len(sums):
        names = [each.name for each in sums]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"task.sums: {twice} is declared twice (every task sums tested and loss_sum)")
    if sum(math.prod(each.shape) for each in sums) > MAX_SUMMED:
        raise ConfigError(f"task.sums: expected at most {MAX_SUMMED} numbers in all")
    for each in sums:
        limit = by_name.get(each.at_most)
        if each.at_most and (limit is None or not (limit.is_count and each.is_count)):
            raise ConfigError(f"task.sums: {each.name}: at_most {each.at_most}: both are counts of the task")
    for name, pair in ratios.items():
        if name in ("loss", "tested"):
            raise ConfigError(f"task.ratios: every task has a figure {name} already")
        for part in pair:
            if part not in by_name or by_name[part].shape != ():
                raise ConfigError(f"task.ratios: {name}: {part} is no single number that the task sums")
