"""The next state follows from the tagged sums alone and has the same bits everywhere, for every method."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.state import state_to_bytes
from strategies.base import Array
from tests.support.next_states import ANALYSES, VARIANTS, VECTORS, arithmetic, digests, steps

ROOT = Path(__file__).resolve().parents[3]
# figures that move no state: they stay with coordinator and operator
UNTAGGED = {
    *("silos", "correct", "tested", "loss_sum", "clipped", "absolute_error", "squared_error"),
    *("personal_accuracy", "personal_accuracy_square", "personal_silos"),
}


class Tagged(Mapping[str, Array]):
    """The tagged sums; to ask for another one is a KeyError."""

    def __init__(self, sums: Mapping[str, Array], names: frozenset[str]) -> None:
        self._sums = {name: sums[name].copy() for name in names}
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        value = self._sums[name]
        self.read.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._sums)

    def __len__(self) -> int:
        return len(self._sums)


@pytest.mark.parametrize("variant", [*VARIANTS, *ANALYSES])
def test_the_next_state_reads_every_tagged_sum_and_no_other(variant: str) -> None:
    for step in steps(variant):
        tagged = Tagged(step.sums, step.tagged)
        result = step.phase.next_state(step.context, tagged)
        assert tagged.read == step.tagged, step.name
        assert set(step.sums) - step.tagged <= UNTAGGED, step.name
        assert result.state is not None
        assert state_to_bytes(result.state) == state_to_bytes(step.state)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_phase_that_tags_nothing_moves_no_state(variant: str) -> None:
    untagged = [step for step in steps(variant) if not step.tagged]
    assert untagged
    for step in untagged:
        assert step.phase.next_state(step.context, {}).state is step.context.state


@pytest.mark.parametrize("variant", [*VARIANTS, *ANALYSES])
def test_figures_move_nothing_that_the_next_state_reads(variant: str) -> None:
    for step in steps(variant):
        before = {name: value.copy() for name, value in step.sums.items()}
        figures = step.phase.figures(step.context, step.sums)
        assert all(isinstance(figure, float) for figure in figures.values())
        for name, value in step.sums.items():
            np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("variant", [*VARIANTS, *ANALYSES])
def test_states_have_the_bits_that_other_machines_computed(variant: str) -> None:
    """A machine or a library that differs here computes another model than its federation."""
    assert digests(variant) == vectors()["states"][variant]


def test_sums_and_solutions_have_the_bits_that_other_machines_computed() -> None:
    assert arithmetic() == vectors()["arithmetic"]


def test_vectors_hold_no_other_variant() -> None:
    assert vectors()["states"].keys() == {*VARIANTS, *ANALYSES}


def vectors() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(VECTORS.read_text())
    return found


def dispatched() -> list[str]:
    """Instruction sets beyond the baseline that numpy uses on this machine, the oldest first."""
    from numpy._core import _multiarray_umath as umath

    return [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]


@pytest.mark.parametrize("kept", range(len(dispatched())))
def test_states_do_not_follow_from_the_processors_instructions(kept: int) -> None:
    """With none of them, and with each more of them, but for all: those run above."""
    without = " ".join(dispatched()[kept:])
    command = [sys.executable, "-m", "tests.support.next_states", "--print"]
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": without}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == VECTORS.read_text()
