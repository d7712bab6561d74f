"""Errors by patient: what of patients their products give away.

All ways in which patients may hold a few records of two cells are grouped by what a reader of exact figures
sees, whatever the values: ranks, and whether squares of sums are sums of squares.

Source: docs/decisions/0041-analysis.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.training.analysis.model import model_sums
from silo_agent.training.analysis.patients import patient_counts
from silo_agent.training.analysis.table import DescribedTable
from strategies.analysis import model_state, model_values
from strategies.analysis.counts import CELLS, IMPLAUSIBLE, CountsPhase
from strategies.analysis.model_state import BLOCKS, COEFFICIENTS, MODEL_PARTS, Status, status_in
from strategies.analysis.model_values import PAIRS, SEVERAL, ModelValuesPhase
from strategies.analysis.partition import Family, Model, Partition, Tables
from strategies.analysis.regression import LIKELIHOODS, OUTER
from strategies.base import TOTAL, Array, Arrays, PhaseContext

Floats = NDArray[np.float64]
# records of one patient in each cell
KINDS = [(first, second) for first in range(4) for second in range(4) if 1 <= first + second <= 3]
Patients = tuple[int, ...]  # of each kind


def tables_of(min_cell: int) -> Tables:
    """An outcome and a number, alone and by each of two cells."""
    number = Partition(parts=1, edges=(0.0, 1.0), has_mean=True, has_missing=False)
    return Tables(
        partitions=(number, number, Partition(parts=2, has_missing=False)),
        group=None,
        min_cell=min_cell,
        model=Model(outcome=0, family=Family.LINEAR, terms=((1,), (2,), (1, 2)), by_patient=True),
    )


def all_patients(first: int, second: int, kinds: Sequence[tuple[int, int]] = KINDS) -> Iterator[Patients]:
    """Every way to give so many records of each cell to patients."""
    if not kinds:
        if first == second == 0:
            yield ()
        return
    (one, other), *rest = kinds
    most = min(value // each for value, each in ((first, one), (second, other)) if each)
    for count in range(most + 1):
        for more in all_patients(first - count * one, second - count * other, rest):
            yield (count, *more)


def table_of(patients: Patients) -> DescribedTable:
    """With values that fulfil no equation but by chance: numbers drawn from 0 on."""
    held = [kind for kind, count in zip(KINDS, patients, strict=True) for _ in range(count)]
    cell_N = np.array([cell for kind in held for cell in (0, 1) for _ in range(kind[cell])])
    unit_N = np.repeat(np.arange(len(held)), [sum(kind) for kind in held])
    z_NK = np.random.default_rng(len(cell_N)).uniform(-1, 1, (len(cell_N), 2))
    parts_NC = np.stack([0 * cell_N, 0 * cell_N, cell_N], axis=1)
    return DescribedTable(parts_NC=parts_NC, z_NK=z_NK, name="data", unit_N=unit_N)


def hidden(patients: Patients) -> dict[str, int]:
    def count(kept: Any) -> int:
        return sum(count for kind, count in zip(KINDS, patients, strict=True) if kept(*kind))

    return {
        "patients": sum(patients),
        "in the first cell": count(lambda first, second: first > 0),
        "in the second": count(lambda first, second: second > 0),
        "in both": count(lambda first, second: first > 0 and second > 0),
        **{f"of {n} records": count(lambda first, second, n=n: first + second == n) for n in (1, 2, 3)},
    }


def seen(tables: Tables, table: DescribedTable) -> tuple[int, ...]:
    """Of a model that is withheld nothing: its values alone may be why."""
    state, counts = begun(tables, table)
    sums = patient_counts(table, tables, state)
    state = ModelValuesPhase(tables=tables)._in_blocks(state, counts, sums[PAIRS], int(sums[SEVERAL])).state
    assert state is not None
    if status_in(state) is not Status.RUNNING:
        return ()
    return (*state[BLOCKS].tolist(), *structure(tables, table, state))


def begun(tables: Tables, table: DescribedTable) -> tuple[Arrays, Array]:
    """After the counts of both cells, and these."""
    context = PhaseContext(round=0, members=3, classes=1, state={TOTAL: np.array(table.records)}, trained=())
    counts = np.bincount(table.parts_NC[:, 2])
    cells = np.array([table.records] * 2 + [*counts] * 2)
    state = CountsPhase(tables=tables).next_state(context, {CELLS: cells}).state
    assert state is not None
    return state, counts


def structure(tables: Tables, table: DescribedTable, state: Arrays) -> tuple[int, ...]:
    """Ranks of the products of each cell, of both, and whether squares of sums are sums of squares."""
    is_second_N = (table.parts_NC[:, 2] == 1).astype(np.float64)
    number_N = table.z_NK[:, 1]
    design_NP = np.stack([is_second_N**0, number_N, is_second_N, number_N * is_second_N], axis=1)
    fitted_P = np.linalg.lstsq(design_NP, table.z_NK[:, 0])[0]
    sums = model_sums(table, tables, {**state, COEFFICIENTS: fitted_P}, is_last=True)
    by_cell_PP = np.array([[1.0, 0, -1, 0], [0, 1, 0, -1], [0, 0, 1, 0], [0, 0, 0, 1]])
    products = by_cell_PP @ np.asarray(sums[OUTER], np.float64) @ by_cell_PP.T
    ranks = [
        np.linalg.matrix_rank(each, tol=1e-9)
        for each in (products[:2, :2], products[2:, 2:], products[:2, 2:])
    ]
    are_alone = abs(sums[OUTER][0, 0] + 2.0 * sums[LIKELIHOODS]) < 1e-9
    return (*map(int, ranks), int(are_alone))


Worlds = dict[tuple[int, ...], dict[str, set[int]]]


def worlds_of(min_cell: int, first: int, second: int) -> Worlds:
    """By what is seen the values of each hidden number."""
    worlds: Worlds = defaultdict(lambda: defaultdict(set))
    tables = tables_of(min_cell)
    for patients in all_patients(first, second):
        key = seen(tables, table_of(patients))
        for name, value in hidden(patients).items():
            worlds[key][name].add(value)
    worlds.pop((), None)
    return worlds


def pinned(worlds: Worlds, min_cell: int) -> Worlds:
    """Those with fewer than min_cell values."""
    narrow = {
        key: {name: each for name, each in values.items() if len(each) < min_cell}
        for key, values in worlds.items()
    }
    return {key: found for key, found in narrow.items() if found}


def however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of as few records as are enumerated."""
    for module in (model_state, model_values):
        monkeypatch.setattr(module, "bears", lambda records, parameters: True)


@pytest.mark.parametrize(
    ("min_cell", "first", "second"), [(2, 6, 6), (2, 9, 7), (2, 9, 9), (3, 9, 9), (4, 10, 10)]
)
def test_no_number_of_patients_has_fewer_values_than_min_cell(
    min_cell: int, first: int, second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few records a model has."""
    however_few(monkeypatch)
    worlds = worlds_of(min_cell, first, second)
    assert {key[:2] for key in worlds} == {(-1, -1), (0, 1), (0, 0)}
    assert pinned(worlds, min_cell) == {}


@pytest.mark.parametrize("least", [0, 1])
def test_the_enumeration_finds_rules_that_give_patients_away(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of any two records of a patient, and those of two cells that one patient has."""
    however_few(monkeypatch)
    monkeypatch.setattr(model_values, "least_patients", lambda tables: least)
    found = pinned(worlds_of(2, 6, 6), 2)
    assert {"in both", "in the second"} <= {name for names in found.values() for name in names}


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        (PAIRS, lambda pairs_FF: -pairs_FF),
        (PAIRS, lambda pairs_FF: pairs_FF + np.array([[0, 0], [1, 0]])),
        (PAIRS, lambda pairs_FF: pairs_FF + 20),
        (SEVERAL, lambda several: several - 20),
        (SEVERAL, lambda several: several + 20),
    ],
)
def test_patients_that_no_records_give_are_not_applied(
    name: str, lie: Callable[[Array], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    however_few(monkeypatch)
    tables, table = tables_of(2), table_of((1,) * len(KINDS))
    state, counts = begun(tables, table)
    sums = patient_counts(table, tables, state)
    for lied, reason in ((sums, ""), ({**sums, name: lie(sums[name])}, IMPLAUSIBLE)):
        phase = ModelValuesPhase(tables=tables)
        result = phase._in_blocks(state, counts, np.asarray(lied[PAIRS]), int(lied[SEVERAL]))
        assert (result.state is None, result.reason) == (bool(reason), reason)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (None, "expected int64 of shape (2,), got none"),
        (np.array([0, 5]), "expected parts from 0 to 1"),
        (np.array([0, -1]), "expected parts from 0 to 1"),
    ],
)
def test_patients_are_counted_by_parts_alone(array: Array | None, message: str) -> None:
    """A cell beyond the last one was an IndexError where the silo had records in it, and one below the first
    was counted as another."""
    tables, table = tables_of(2), table_of((1,) * len(KINDS))
    state, _ = begun(tables, table)
    bent = {name: each for name, each in state.items() if name != f"{MODEL_PARTS}2"}
    with pytest.raises(ConfigError, match=re.escape(message)):
        patient_counts(table, tables, bent if array is None else {**bent, f"{MODEL_PARTS}2": array})


@pytest.mark.parametrize("blocks", [[2, 0], [0, -2]])
def test_blocks_of_no_cell_are_refused(blocks: list[int]) -> None:
    """With 2 the records of a patient counted together with those of the next one."""
    tables, table = tables_of(2), table_of((1,) * len(KINDS))
    state, _ = begun(tables, table)
    with pytest.raises(ConfigError, match="expected blocks from -1 to 1"):
        model_sums(table, tables, {**state, BLOCKS: np.array(blocks)}, is_last=True)
