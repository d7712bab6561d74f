"""What one reader of analyses sees, as a linear program over the cells of the cube of all columns.

X = cells of the cube, missing values included, E = published counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp  # type: ignore[import-untyped]

from chorale.spec.analysis_spec import AnalysisSpec
from research.analysis.records import Columns, described, job, last_state
from strategies.analysis.counts import CELL_PARTS, PARTS, ROWS
from strategies.analysis.merging import coarser_parts, numbered, split_bins
from strategies.analysis.model_state import MODEL_PARTS
from strategies.analysis.partition import Partition
from strategies.analysis.survival import IS_SHOWN
from strategies.base import Arrays

LEAST = 10
LEEWAY = 1e-6  # of a program's optimum
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """columns: of the jobs. group, model, survival: of one job each, over these columns or some of them."""

    name: str
    columns: Mapping[str, Mapping[str, Any]]
    values: Columns
    group: str
    model: Mapping[str, Any]
    survival: Mapping[str, Any]

    def jobs(self) -> dict[str, AnalysisSpec]:
        """Two that a silo answers beside curves, too: without their time."""
        time = self.survival["time"]
        terms = [term for term in self.model["terms"] if time not in term]
        others = [name for name in self.columns if name != time]
        return {
            "table 1": job(self._declared(self.columns), group=self.group),
            "table 1 without time": job(self._declared(others), group=self.group),
            "model": self._modeled(self.model),
            "model without time": self._modeled({**self.model, "terms": terms}),
            "survival": job(self._declared(self.survival.values()), survival=self.survival),
        }

    def _modeled(self, model: Mapping[str, Any]) -> AnalysisSpec:
        names = dict.fromkeys([*(name for term in model["terms"] for name in term), model["outcome"]])
        return job(self._declared(names), model=model)

    def _declared(self, names: Any) -> list[dict[str, Any]]:
        return [{"name": name, **self.columns[name]} for name in names]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """By one reader, of a cube. equal_EX: each sums to count_E. below: each at most so many. one_of: of each
    list one sum is below LEAST. hidden: what was counted and is not shown. known_X: records that the reader
    has itself."""

    held_X: NDArray[np.int64]
    equal_EX: NDArray[np.bool_]
    below: Sequence[tuple[Mask, int]]
    one_of: Sequence[Sequence[Mask]]
    hidden: Sequence[Mask]
    known_X: NDArray[np.int64]

    def values_of(self, mask_X: Mask, *, is_whole: bool) -> range:
        """The whole numbers that it may be. is_whole: by an integer program, else by a linear one."""
        weight_X = mask_X.astype(np.float64)
        low, high = (sign * self._least(sign * weight_X, is_whole=is_whole) for sign in (1.0, -1.0))
        return range(math.ceil(low - LEEWAY), math.floor(high + LEEWAY) + 1)

    def is_fixed(self, mask_X: Mask) -> bool:
        """Whether it is a sum and difference of published counts."""
        apart = mask_X - self._basis_XB @ (self._basis_XB.T @ mask_X)
        return bool(np.abs(apart).max() < 1e-7)

    @cached_property
    def _basis_XB(self) -> NDArray[np.float64]:
        left, values, _ = np.linalg.svd(self.equal_EX.T.astype(np.float64), full_matrices=False)
        return np.asarray(left[:, values > 1e-8 * values.max()])

    def _least(self, weight_X: NDArray[np.float64], *, is_whole: bool) -> float:
        bound = np.array([mask_X for mask_X, _ in self.below], np.float64).reshape(-1, len(weight_X))
        most = np.array([count for _, count in self.below], np.float64)
        equal, count = self.equal_EX.astype(np.float64), (self.equal_EX @ self.held_X).astype(np.float64)
        if not is_whole:
            bounds = [(known, None) for known in self.known_X.tolist()]
            found = linprog(
                weight_X, A_ub=bound, b_ub=most, A_eq=equal, b_eq=count, bounds=bounds, method="highs"
            )
            return float(found.fun)
        flags = [mask_X for each in self.one_of for mask_X in each]
        size, total = len(weight_X), float(self.held_X.sum())
        rows = [LinearConstraint(_wider(equal, len(flags)), count, count)]
        rows += [LinearConstraint(_wider(bound, len(flags)), -np.inf, most)] if len(bound) else []
        if flags:
            # a cell is below LEAST where its flag is 1
            small = np.hstack([np.array(flags, np.float64), (total - LEAST + 1) * np.eye(len(flags))])
            rows.append(LinearConstraint(small, -np.inf, total))
            one, place = np.zeros((len(self.one_of), size + len(flags))), size
            for row, each in zip(one, self.one_of, strict=True):
                row[place : place + len(each)] = 1.0
                place += len(each)
            rows.append(LinearConstraint(one, 1.0, np.inf))
        found = milp(
            np.append(weight_X, np.zeros(len(flags))),
            constraints=rows,
            integrality=np.ones(size + len(flags)),
            bounds=Bounds(
                np.append(self.known_X, np.zeros(len(flags))),
                np.append(np.full(size, np.inf), np.ones(len(flags))),
            ),
            options={"time_limit": 20.0},
        )
        return float(found.mip_dual_bound if found.status == 1 else found.fun)


def _wider(rows: NDArray[np.float64], by: int) -> NDArray[np.float64]:
    return np.hstack([rows, np.zeros((len(rows), by))])


class Cube:
    """Of all columns of these records, in the order of table 1."""

    def __init__(self, records: Records) -> None:
        self.jobs = records.jobs()
        spec = self.jobs["table 1"]
        self.names = [column.name for column in spec.columns]
        shape = [partition.size for partition in spec.tables.partitions]
        self.axes = {name: axis.ravel() for name, axis in zip(self.names, np.indices(shape), strict=True)}
        parts_NC = described(spec, records.values).parts_NC
        held_X = np.zeros(shape, np.int64)
        np.add.at(held_X, tuple(parts_NC.T), 1)
        self.held_X = held_X.ravel()
        self._values = records.values
        self._states: dict[str, Arrays] = {}

    def seen(self, jobs: Sequence[str], *, is_merged: bool = True) -> Seen:
        """By a reader of these jobs. is_merged: as the product does; else the control of table 1."""
        found = _Found(self, is_merged=is_merged)
        for name in jobs:
            if name not in self._states:
                self._states[name] = last_state(self.jobs[name], self._values)
            found.add(self.jobs[name], self._states[name])
        return found.seen()


class _Found:
    """What jobs show, one after the other."""

    def __init__(self, cube: Cube, *, is_merged: bool) -> None:
        self._cube, self._is_merged = cube, is_merged
        self._equal: list[Mask] = []
        self._below: list[tuple[Mask, int]] = []
        self._one_of: list[list[Mask]] = []
        self._declared: list[Mask] = []

    def add(self, spec: AnalysisSpec, state: Arrays) -> None:
        """What this job shows."""
        everybody = np.ones(len(self._cube.held_X), np.bool_)
        if spec.tables.is_complete:
            for column, partition in zip(spec.columns, spec.tables.partitions, strict=True):
                everybody &= self._cube.axes[column.name] < partition.parts
        for place in spec.tables.described:
            if place == spec.tables.time:
                if not state[f"{PARTS}{place}"].any():
                    self._equal.append(everybody)
                    continue
                for ending, its, axis in self._endings(spec, everybody):
                    bins = split_bins(state[f"{PARTS}{place}"].tolist())[ending]
                    self._column(axis, numbered(bins), spec.tables.partitions[place], its)
            elif (parts := state.get(f"{PARTS}{place}")) is not None:
                axis = self._cube.axes[spec.columns[place].name]
                self._column(axis, parts.tolist(), spec.tables.partitions[place], everybody)
        if spec.tables.group is not None:
            self._tables(spec, state, everybody)
        elif spec.tables.model is not None or state.get(IS_SHOWN):
            self._joint(spec, state, everybody)

    def seen(self) -> Seen:
        """What is shown is not hidden."""
        equal_EX = np.unique(np.array(self._equal), axis=0)
        shown = {mask_X.tobytes() for mask_X in equal_EX}
        hidden = {mask_X.tobytes(): mask_X for mask_X in self._declared}
        held_X = self._cube.held_X
        # of a bound that the truth exceeds the reader could not be sure
        below = [(mask_X, most) for mask_X, most in self._below if held_X[mask_X].sum() <= most]
        one_of = [each for each in self._one_of if min(held_X[mask_X].sum() for mask_X in each) < LEAST]
        return Seen(
            held_X=held_X,
            equal_EX=equal_EX,
            below=below,
            one_of=one_of,
            hidden=[mask_X for key, mask_X in hidden.items() if key not in shown],
            known_X=np.zeros_like(held_X),
        )

    def _column(
        self, axis: NDArray[np.int64], parts: list[int], partition: Partition, everybody: Mask
    ) -> None:
        """By itself. Parts that were merged held too little, each by itself and, of numbers, upwards."""
        masks = [everybody & (axis == part) for part in range(len(parts))]
        self._declared += masks
        for part in sorted(set(parts)):
            inside = [each for each, at in enumerate(parts) if at == part]
            self._equal.append(np.logical_or.reduce([masks[each] for each in inside]))
            if partition.is_ordered:
                inside = [each for each in inside if each == partition.parts] + [
                    each for each in inside if each < partition.parts
                ]
                first = [
                    np.logical_or.reduce([masks[each] for each in inside[:n]]) for n in range(1, len(inside))
                ]
                self._below += [(mask_X, LEAST - 1) for mask_X in first]
            elif len(inside) > 1:
                self._below += [(masks[each], LEAST - 1) for each in inside if each != partition.parts - 1]

    def _tables(self, spec: AnalysisSpec, state: Arrays, everybody: Mask) -> None:
        group, tables = spec.tables.group, spec.tables
        assert group is not None
        of_group = self._cube.axes[spec.columns[group].name]
        rows_G = state[ROWS]
        self._equal += [rows_G[of_group] == row for row in set(rows_G.tolist())]
        for place in tables.described:
            axis = self._cube.axes[spec.columns[place].name]
            self._declared += [
                (of_group == row) & (axis == part)
                for row, part in product(range(len(rows_G)), range(tables.partitions[place].size))
            ]
            finest = state[f"{PARTS}{place}"]
            if not self._is_merged:
                cells = _cells(rows_G[of_group], finest[axis])
                self._equal += [mask_X for mask_X in cells if self._cube.held_X[mask_X].sum() >= LEAST]
                continue
            chosen = state[f"{CELL_PARTS}{place}"]
            self._equal += _cells(rows_G[of_group], chosen[axis])
            is_alone = finest.tolist().count(int(finest[-1])) == 1
            self._step_before(
                finest.tolist(),
                [int(self._cube.held_X[finest[axis] == part].sum()) for part in range(int(finest.max()) + 1)],
                chosen.tolist(),
                is_ordered=tables.partitions[place].is_ordered,
                missing=int(finest[-1]) if is_alone else None,
                others=rows_G[of_group],
                axis=axis,
            )

    def _step_before(
        self,
        finest: list[int],
        counts: list[int],
        chosen: list[int],
        *,
        is_ordered: bool,
        missing: int | None,
        others: NDArray[np.int64],
        axis: NDArray[np.int64],
        everybody: Mask | None = None,
    ) -> None:
        """One of its cells is small. others: the rows that it is a table with."""
        before = None
        for step in coarser_parts(finest, counts, is_ordered=is_ordered, missing=missing):
            if step == chosen:
                break
            before = step
        if before is not None:
            cells = _cells(others, np.array(before)[axis])
            self._one_of.append([each if everybody is None else each & everybody for each in cells])

    def _joint(self, spec: AnalysisSpec, state: Arrays, everybody: Mask) -> None:
        """The table of a model or curves. Of curves some cell of the step before is small, too; of a model
        which one is before follows from all factors together."""
        tables = spec.tables
        fine, used = np.zeros(len(everybody), np.int64), np.zeros(len(everybody), np.int64)
        for place, size in zip(tables.joint, tables.joint_shape, strict=True):
            axis = np.minimum(self._axis(spec, place), size - 1)
            parts = state.get(f"{MODEL_PARTS}{place}", np.arange(size))
            fine, used = fine * size + axis, used * size + parts[np.minimum(axis, len(parts) - 1)]
        for labels, into in ((used, self._equal), (fine, self._declared)):
            masks = (everybody & mask_X for mask_X in _cells(labels))
            into += [mask_X for mask_X in masks if mask_X.any()]
        if tables.survival is None or tables.time is None:
            return
        time, group = tables.time, tables.survival.group
        others = np.zeros_like(fine)
        if group is not None:
            others = state[f"{MODEL_PARTS}{group}"][
                np.minimum(self._axis(spec, group), tables.joint_shape[1] - 1)
            ]
        for ending, its, axis in self._endings(spec, everybody):
            finest, chosen = (
                numbered(split_bins(state[f"{name}{time}"].tolist())[ending]) for name in (PARTS, MODEL_PARTS)
            )
            inside = np.minimum(axis, len(finest) - 1)
            held = [its & (np.array(finest)[inside] == part) for part in range(max(finest) + 1)]
            counts = [int(self._cube.held_X[mask_X].sum()) for mask_X in held]
            self._step_before(
                finest,
                counts,
                chosen,
                is_ordered=True,
                missing=None,
                others=others,
                axis=inside,
                everybody=its,
            )

    def _axis(self, spec: AnalysisSpec, place: int) -> NDArray[np.int64]:
        """The declared part of each cell of the cube; of a time by ending."""
        tables, names = spec.tables, [column.name for column in spec.columns]
        axis = self._cube.axes[names[place]]
        if place == tables.time and tables.status is not None:
            axis = axis + tables.partitions[place].parts * self._cube.axes[names[tables.status]]
        return np.asarray(axis, np.int64)

    def _endings(self, spec: AnalysisSpec, everybody: Mask) -> Iterator[tuple[int, Mask, NDArray[np.int64]]]:
        """Of those censored, and of events, who they are, and the declared part of time of each."""
        tables = spec.tables
        assert tables.time is not None
        assert tables.status is not None
        time, status = (self._cube.axes[spec.columns[place].name] for place in (tables.time, tables.status))
        for ending in range(2):
            yield ending, everybody & (status == ending), time


def _cells(*axes: NDArray[np.int64]) -> list[Mask]:
    """Of the table of these."""
    label = np.zeros(len(axes[0]), np.int64)
    for axis in axes:
        label = label * (int(axis.max()) + 1) + axis
    return [label == each for each in np.unique(label)]
