"""What silos add to the sums of an analysis, against the pooled table of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from chorale.spec.analysis_spec import AnalysisSpec
from crypto.errors import ConfigError
from silo_agent.training.analysis.cells import cell_counts, cell_values
from silo_agent.training.analysis.table import DescribedTable, load_table
from silo_agent.training.data.settings import DataSettings
from strategies.analysis.counts import CELLS, ROWS
from strategies.analysis.values import NUMBERS, SQUARES, SUMS
from strategies.base import TOTAL, Array, total_of
from tests.support.databases import write_table
from tests.support.described import analysis

pd = pytest.importorskip("pandas", reason="needs the extra notebook")

SIZES = {"a": 40, "b": 110, "c": 300}  # a csv file, a parquet file, a database
SEX: dict[str, Any] = {"name": "sex", "categories": ("f", "m")}
SMOKER: dict[str, Any] = {"name": "smoker", "categories": ("no", "former", "yes")}
AGE: dict[str, Any] = {"name": "age", "edges": (0.0, 40.0, 60.0, 120.0), "show": ("mean", "counts")}
GLUCOSE: dict[str, Any] = {
    "name": "glucose",
    "edges": (20.0, 100.0, 126.0, 600.0),
    "unit": "mg/dL",
    "show": ("mean",),
}
FACTOR = 18.0


def job(group: str | None) -> AnalysisSpec:
    return analysis(AGE, SEX, SMOKER, GLUCOSE, group=group)


def frame_of(silo: str) -> Any:
    """As the silo stores it: words of its own for what is missing, and cells that nobody can have."""
    rng, count = np.random.default_rng(list(SIZES).index(silo)), SIZES[silo]
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m", "x", None], count, p=[0.45, 0.4, 0.05, 0.1]),
            "smoker": rng.choice(["no", "former", "yes", "unknown"], count),
            "age": rng.integers(0, 100, count).astype(float),
            "glucose": rng.normal(110, 30, count).round(1),
        }
    )
    frame.loc[::9, "age"], frame.loc[4::50, "age"] = 230.0, -9.0
    frame.loc[7::12, "glucose"] = None
    if silo == "b":
        frame["glucose"] = frame["glucose"] / FACTOR
    return frame.drop(columns="smoker") if silo == "c" else frame


def settings_of(silo: str, folder: Path) -> DataSettings:
    frame = frame_of(silo)
    fields: dict[str, Any] = {"missing": {"age": ("-9",), "smoker": ("unknown",)}}
    given: dict[str, Any] = {"format": "csv", "path": folder / "a.csv"}
    if silo == "a":
        frame.to_csv(folder / "a.csv", index=False)
    elif silo == "b":
        parquet.write_table(pyarrow.Table.from_pandas(frame), folder / "b.parquet")
        fields["units"] = {"glucose": {"unit": "mmol/L", "factors": {"mg/dL": FACTOR}}}
        given = {"format": "parquet", "path": folder / "b.parquet"}
    else:
        write_table(folder, list(frame), frame.astype(object).where(frame.notna(), None).values.tolist())
        fields = {"missing": {"age": ("-9",)}, "absent": ("smoker",)}
        given = {"format": "sql", "database": {"url_file": folder / "url", "table": "t"}}
    return DataSettings.model_validate(given | fields)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, DescribedTable]:
    """Of each silo. A group whose values are not summed, or none, changes nothing of them."""
    return {silo: load_table(settings_of(silo, tmp_path), job("sex")) for silo in SIZES}


def pooled() -> Any:
    """All records in the job's words, and the part of each column beside it."""
    frames = {silo: frame_of(silo) for silo in SIZES}
    frames["b"]["glucose"] *= FACTOR
    frame = pd.concat(frames.values(), ignore_index=True)
    for column in (AGE, GLUCOSE):
        name, edges = column["name"], column["edges"]
        is_known = frame[name].between(edges[0], edges[-1])
        frame[name] = frame[name].where(is_known)
        frame[f"{name} part"] = pd.cut(frame[name], edges, right=False, labels=False)
    for column in (SEX, SMOKER):
        known = {text: place for place, text in enumerate(column["categories"])}
        frame[f"{column['name']} part"] = frame[column["name"]].map(known)
    return frame


def parts(frame: Any, name: str, size: int) -> Any:
    """Missing the last."""
    return pd.Categorical(frame[f"{name} part"].fillna(size - 1).astype(int), categories=range(size))


@pytest.mark.parametrize("group", [None, "sex", "age"])
def test_cells_of_uneven_silos_add_up_to_those_of_the_pooled_table(
    group: str | None, tables: dict[str, DescribedTable]
) -> None:
    spec, frame = job(group), pooled()
    sums = np.sum([cell_counts(table, spec.tables)[CELLS] for table in tables.values()], axis=0)
    sizes = dict(zip([column.name for column in spec.columns], (4, 3, 4, 4), strict=True))
    by = np.zeros(len(frame)) if group is None else parts(frame, group, sizes[group])
    expected = [
        pd.crosstab(by, parts(frame, name, sizes[name]), dropna=False).to_numpy().ravel()
        for name in sizes
        if name != group
    ]
    assert np.concatenate(expected).tolist() == sums.tolist()
    assert sums.dtype == np.int64
    assert sums.sum() == sum(SIZES.values()) * (len(sizes) - (group is not None))


@pytest.mark.parametrize(
    ("group", "rows"), [(None, [0]), ("sex", [0, 1, 2]), ("sex", [0, 1, 0]), ("sex", [0, 0, 0])]
)
def test_values_of_uneven_silos_add_up_by_published_part(
    group: str | None, rows: list[int], tables: dict[str, DescribedTable]
) -> None:
    spec, frame, state = job(group), pooled(), {ROWS: np.array(rows)}
    found = [cell_values(table, spec.tables, state) for table in tables.values()]
    sums = {name: np.sum([each[name] for each in found], axis=0) for name in (NUMBERS, SUMS, SQUARES)}
    part_N = np.zeros(len(frame), int) if group is None else parts(frame, group, 3).codes
    row_N = np.array(rows)[part_N]
    for place, column in enumerate((AGE, GLUCOSE)):
        low, *_, high = column["edges"]
        z = (frame[column["name"]] - (low + high) / 2) / ((high - low) / 2)
        for row in sorted({*rows}):
            mine = z[row_N == row].dropna()
            assert sums[NUMBERS][place, row] == len(mine)
            assert sums[SUMS][place, row] == pytest.approx(mine.sum())
            assert sums[SQUARES][place, row] == pytest.approx((mine**2).sum())
    assert {each.shape for each in found[0].values()} == {(2, len(rows))}
    assert not any(each[:, max(rows) + 1 :].any() for each in sums.values())


def test_the_group_itself_is_not_measured(tables: dict[str, DescribedTable], tmp_path: Path) -> None:
    spec = job("age")
    table = load_table(settings_of("a", tmp_path), spec)
    values = cell_values(table, spec.tables, {ROWS: np.array([0, 1, 1, 0])})
    assert table.z_NK.shape == (SIZES["a"], 1)
    assert values[NUMBERS].sum() == np.count_nonzero(tables["a"].parts_NC[:, 3] < 3)


@pytest.mark.parametrize(
    "row_G",
    [None, np.zeros(2, np.int64), np.zeros(3), np.array([0, 1, 3]), np.array([0, -1, 1])],
    ids=["none", "too short", "fractions", "a part beyond", "below 0"],
)
def test_a_state_without_the_parts_of_the_group_is_refused(
    row_G: Any, tables: dict[str, DescribedTable]
) -> None:
    state = {} if row_G is None else {ROWS: row_G}
    with pytest.raises(ConfigError, match="method/group_parts: expected"):
        cell_values(tables["a"], job("sex").tables, state)


@pytest.mark.parametrize("total", [None, np.array([7]), np.array(7.0)])
def test_a_state_that_does_not_say_how_many_records_there_are_is_refused(total: Array | None) -> None:
    """Without one it was a KeyError before a job's layout, and an internal failure of the silo."""
    with pytest.raises(ConfigError, match="method/total: expected one whole number, got"):
        total_of({} if total is None else {TOTAL: total})


def test_a_silo_without_records_adds_nothing() -> None:
    table = DescribedTable(parts_NC=np.zeros((0, 4), np.int64), z_NK=np.zeros((0, 2)), name="data")
    tables = job("sex").tables
    assert cell_counts(table, tables)[CELLS].tolist() == [0] * tables.cells
    values = cell_values(table, tables, {ROWS: np.array([0, 1, 0])})
    assert [each.tolist() for each in values.values()] == [[[0, 0, 0], [0, 0, 0]]] * 3
