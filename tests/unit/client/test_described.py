"""Table 1 from an analysis's last state: figures that can be checked by hand, and states that lie."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import numpy as np
import pytest

from client.analysis.columns import ColumnFigures
from client.analysis.described import DescribedResults
from client.analysis.figures import Quartile, Quartiles, Spread, difference_of_means, difference_of_parts
from client.analysis.parts import published_parts
from client.analysis.results import AnalysisResults
from client.analysis.tables import near, short
from crypto.errors import ConfigError
from strategies.analysis.counts import CELL_COUNTS, PART_COUNTS, PARTS, ROW_COUNTS, ROWS
from strategies.analysis.values import DEVIATIONS, MEANS, SHOWN
from strategies.base import Array
from strategies.figure import Figure
from tests.support.analysis_records import described, numbers
from tests.support.described import AGE, PAIN, SEX, analysis, by_sex, counted, rows, spreads, whole

State = dict[str, Array]
NUMBERS = [30.0, 40.0, 50.0, 70.0, 110.0]
# text that steers a terminal, a page, a spreadsheet and matplotlib
HOSTILE = '=<script>alert("1")</script>|`[x](http://h)`$a_$'


def results(*, show: list[str] | None = None) -> DescribedResults:
    spec, state = by_sex()
    if show is not None:
        spec = analysis({**AGE, "show": show}, SEX, PAIN, group="sex")
    return DescribedResults.of(spec, state)


def hostile() -> DescribedResults:
    sex = {"name": f"\x1b[2J{HOSTILE}", "categories": [HOSTILE, "men"]}
    age = {**AGE, "name": f"@{HOSTILE}\n\u202e", "unit": HOSTILE}
    pain = {"name": "pain", "categories": [HOSTILE, "missing", "a or b"]}
    return DescribedResults.of(analysis(age, sex, pain, group=sex["name"], purpose=HOSTILE), by_sex()[1])


def spread(mean: float, deviation: float) -> Spread:
    return Spread(mean=Figure(value=mean), deviation=Figure(value=deviation))


def column(name: str, found: DescribedResults) -> ColumnFigures:
    return next(each for each in found.columns if each.column.name == name)


@pytest.mark.parametrize(
    ("parts", "labels"),
    [
        ([0, 1, 2, 3, 4], ["30 to 40", "40 to 50", "50 to 70", "70 to 110", "missing"]),
        ([0, 0, 0, 1, 2], ["30 to 70", "70 to 110", "missing"]),
        ([0, 1, 1, 1, 0], ["30 to 40 or missing", "40 to 110"]),
        ([0, 0, 0, 0, 1], ["30 to 110", "missing"]),
        ([0, 0, 0, 0, 0], ["any"]),
    ],
)
def test_parts_of_numbers_are_named_by_their_ends(parts: list[int], labels: list[str]) -> None:
    (age,) = analysis({"name": "age", "edges": NUMBERS}).columns
    assert [part.label for part in published_parts(age, parts)] == labels


@pytest.mark.parametrize(
    ("parts", "labels"),
    [
        ([0, 1, 2, 3], ["typical", "other", "none", "missing"]),
        ([0, 1, 0, 2], ["typical or none", "other", "missing"]),
        ([0, 1, 1, 1], ["typical", "other or none or missing"]),
        ([0, 0, 0, 0], ["any"]),
    ],
)
def test_parts_of_categories_are_joined_by_or(parts: list[int], labels: list[str]) -> None:
    (pain,) = analysis(PAIN).columns
    assert [part.label for part in published_parts(pain, parts)] == labels


def test_a_category_that_reads_as_a_word_of_ours_is_in_quotes() -> None:
    (odd,) = analysis({"name": "odd", "categories": ["missing", "a or b", "any", "overall"]}).columns
    labels = [part.label for part in published_parts(odd, [0, 1, 2, 3, 4])]
    assert labels == ['"missing"', '"a or b"', '"any"', '"overall"', "missing"]


def test_a_part_of_many_categories_names_some_and_json_names_all() -> None:
    spec = analysis({"name": "code", "categories": [f"c{place}" for place in range(40)]})
    state = rows([0], [30]) | counted(0, [0] * 40 + [1], [20, 10], [0] * 40 + [1], [[20, 10]])
    found = DescribedResults.of(spec, state)
    label = "c0 or c1 or c2 or c3 or c4 or c5 or c6 or c7 or c8 or c9 or c10 or 29 more"
    assert f"{label} [2] [3]  20 (66.7)" in found.to_text()
    assert found.to_json()["columns"][0]["parts"][0]["members"] == [f"c{place}" for place in range(40)]
    assert "[3] The form json names all" in found.to_text()


def test_counts_are_of_the_finest_parts_over_all_and_of_merged_ones_by_group() -> None:
    lines = [(line.label, line.cells[:3]) for line in results(show=["counts"]).table().lines]
    assert lines == [
        ("age (years)", ("", "", "")),
        ("n (%)", ("", "", "")),
        ("30 to 50", ("80 (46.5)", "50 (50.0)", "30 (41.7)")),
        ("30 to 40", ("20 (11.6)", "", "")),
        ("40 to 50", ("60 (34.9)", "", "")),
        ("50 to 70", ("72 (41.9)", "40 (40.0)", "32 (44.4)")),
        ("missing", ("20 (11.6)", "10 (10.0)", "10 (13.9)")),
        ("pain", ("", "", "")),
        ("n (%)", ("", "", "")),
        ("typical or missing", ("52 (30.2)", "32 (32.0)", "20 (27.8)")),
        ("other or none", ("120 (69.8)", "68 (68.0)", "52 (72.2)")),
    ]
    assert results().table().heads == (
        "overall (n = 172)", "women (n = 100)", "men or missing (n = 72)", "SMD",
    )  # fmt: skip


def notes_of(label: str, found: DescribedResults) -> list[str]:
    table = found.table()
    (line,) = [each for each in table.lines if each.label == label]
    return [table.notes[number - 1] for number in line.notes]


def test_notes_say_what_is_merged_rounded_withheld_and_by_parts() -> None:
    found = results()
    assert notes_of("30 to 40", found) == [
        "By sex merged as in the line above: a cell of the finer table holds fewer than 10 records."
    ]
    assert notes_of("other or none", found) == ["Merged: one of its parts holds fewer than 10 records."]
    assert notes_of("30 to 50", found) == []  # by itself no part of it is small
    rounded, withheld = notes_of("mean (SD)", found)
    assert "rounded to a power of ten below half a standard error" in rounded
    assert withheld.startswith("Not shown: too few values or parts, one value dominates")
    (by_parts,) = notes_of("median [quartiles]", found)
    assert "known no better than the width of the part" in by_parts


def test_a_column_of_which_nothing_is_published_by_group_says_so() -> None:
    spec, state = by_sex()
    state |= counted(0, [0, 1, 2, 3], [20, 60, 72, 20], [0, 0, 0, 0], [[100], [72]])
    found = DescribedResults.of(spec, state)
    (line,) = [each for each in found.table().lines if each.label == "30 to 40"]
    assert line.cells == ("20 (11.6)", "not shown", "not shown", "")
    assert notes_of("30 to 40", found) == [
        "Not shown by sex: each table of both has a cell of fewer than 10 records."
    ]
    assert "any" not in [each.label for each in found.table().lines]
    assert column("age", found).bars(found.heads).groups == ("overall",)


def test_quartiles_are_interpolated_in_the_part_that_holds_them() -> None:
    """38 and 76 of 152 lie in the middle one of 20, 60 and 72; in an outermost part its inner end is said."""
    overall, women, _ = column("age", results()).quartiles_H or ()
    assert overall is not None
    assert (overall.low.value, overall.median.value) == (43.0, pytest.approx(40 + 10 * 56 / 60))
    assert overall.high == Quartile(start=50.0, end=70.0, value=None)
    lowest = Quartile(start=30.0, end=50.0, value=None, is_lowest=True)
    assert women == Quartiles(low=lowest, median=lowest, high=overall.high, has_missing=False)
    (line,) = [each for each in results().table().lines if each.label == "median [quartiles]"]
    assert line.cells[:2] == ("49 [43, >= 50], parts of 10", "< 50 [< 50, >= 50]")


def test_a_quartile_between_two_parts_is_their_common_end() -> None:
    spec = analysis({"name": "x", "edges": [-1, 0, 1, 2, 3, 5], "show": ["median"]})
    counts = [10, 20, 10, 20, 20]
    state = rows([0], [80]) | counted(0, [0, 1, 2, 3, 4, 4], counts, [0, 1, 2, 3, 4, 4], [counts])
    found = DescribedResults.of(spec, state)
    (quarters,) = column("x", found).quartiles_H or ()
    assert quarters is not None
    assert [each.value for each in quarters.all] == [0.5, 2.0, 3.0]
    assert quarters.has_missing
    assert "These quartiles count missing values" in notes_of("median [quartiles]", found)[1]
    assert "n (%)" not in found.to_text()  # shown are medians alone


def test_no_quartiles_of_a_single_part_with_values() -> None:
    spec = analysis({"name": "x", "edges": [0, 1, 2], "show": ["median"]})
    state = rows([0], [40]) | counted(0, [0, 0, 1], [30, 10], [0, 0, 1], [[30, 10]])
    found = DescribedResults.of(spec, state)
    assert column("x", found).quartiles_H == (None,)
    assert notes_of("median [quartiles]", found)[1] == "Not shown: fewer than two parts hold values."


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [(49.333, 10.0, "49"), (49.333, 5.0, "49.3"), (0.12345, 0.05, "0.123"), (1234.5, 300.0, "1230")],
)
def test_quartiles_have_the_digits_of_their_part(value: float, width: float, text: str) -> None:
    assert short(near(value, width)) == text


def test_standardized_differences_are_those_of_the_formulas() -> None:
    close = pytest.approx
    assert difference_of_means(spread(49, 9), spread(48, 12)) == close(1 / np.sqrt(112.5))
    assert difference_of_means(spread(1, 0), spread(2, 0)) is None
    huge = spread(1.7e308, 1.7e308), spread(-1.7e308, 1.7e308)
    assert difference_of_means(*huge) is None
    # two parts: |p - q| / sqrt((p (1 - p) + q (1 - q)) / 2), of 1/4 and 1/2
    assert difference_of_parts([10, 30], [20, 20]) == close(0.25 / np.sqrt((3 / 16 + 1 / 4) / 2))
    # three: with the first two shares (-1/4, 0) apart the square is 1/16 x 0.1875 / 0.0322265625 = 4/11
    assert difference_of_parts([10, 10, 20], [20, 10, 10]) == close(2 / np.sqrt(11))
    assert difference_of_parts([20, 10, 10], [10, 10, 20]) == close(2 / np.sqrt(11))  # of whichever part
    assert difference_of_parts([40], [20]) is None


def test_differences_leave_missing_values_out_and_need_two_groups() -> None:
    found = results()
    first, second = 50 / 90, 30 / 62
    spread = np.sqrt((first * (1 - first) + second * (1 - second)) / 2)
    assert column("age", found).difference_of_parts == pytest.approx(abs(first - second) / spread)
    assert column("age", found).difference_of_means is None  # that of the men is withheld
    spec, state = by_sex()
    state |= spreads(0, [(49.5, 9.0), (48.0, 9.0), (51.0, 12.0)])
    found = DescribedResults.of(spec, state)
    assert column("age", found).difference_of_means == pytest.approx(3 / np.sqrt(112.5))
    # missing values of the group are no third one that is compared
    spec = analysis(PAIN, SEX, group="sex")
    state = rows([0, 1, 2], [30, 30, 30]) | counted(
        0, [0, 1, 1, 0], [45, 45], [0, 1, 1, 0], [[10, 20], [20, 10], [15, 15]]
    )
    (pain,) = DescribedResults.of(spec, state).columns
    assert pain.difference_of_parts == pytest.approx((1 / 3) / np.sqrt(2 / 9))
    spec = analysis(PAIN, {**SEX, "categories": ["a", "b", "c"]}, group="sex")
    state = rows([0, 1, 2, 2], [30, 30, 30]) | {
        name: array for name, array in state.items() if name not in (ROWS, ROW_COUNTS)
    }
    found = DescribedResults.of(spec, state)
    assert found.columns[0].difference_of_parts is None
    assert "SMD" not in found.to_text()


def test_a_group_whose_parts_are_all_merged_is_no_group() -> None:
    spec, state = by_sex()
    state |= rows([0, 0, 0], [172])
    state |= counted(0, [0, 1, 2, 3], [20, 60, 72, 20], [0, 1, 2, 3], [[20, 60, 72, 20]])
    state |= counted(2, [0, 1, 1, 0], [52, 120], [0, 1, 1, 0], [[52, 120]])
    state |= spreads(0, [(49.5, 9.0), (49.5, 9.0)])
    found = DescribedResults.of(spec, state)
    assert found.table().heads == ("overall (n = 172)",)
    assert found.title.startswith("table-one by sex (not shown: its parts hold too few records): 172 records")
    assert {record["group"] for record in found.records()} == {"overall"}


def test_means_that_are_not_summed_yet_say_so() -> None:
    spec, state = by_sex()
    counts = {name: array for name, array in state.items() if name not in spreads(0, [])}
    found = DescribedResults.of(spec, counts)
    (line,) = [each for each in found.table().lines if each.label == "mean (SD)"]
    assert line.cells == ("not summed yet", "not summed yet", "not summed yet", "")
    means = [record for record in found.records() if record["figure"] == "mean"]
    assert [(each["value"], each["note"]) for each in means] == [(None, "not summed yet")] * 3


def test_frame_csv_and_json_have_the_same_figures() -> None:
    pytest.importorskip("pandas", reason="needs the extra notebook")
    found = results()
    frame = AnalysisResults(described=found, further=None).frame()
    assert frame.loc[("age", "mean", "", "women"), "value"] == 48.0
    assert frame.loc[("age", "mean", "", "women"), "note"] == "rounded"
    assert np.isnan(frame.loc[("age", "mean", "", "men or missing"), "value"])
    assert frame.loc[("age", "mean", "", "men or missing"), "note"] == "not shown"
    assert frame.loc[("age", "median", "", "women"), "note"] == "below 50"
    assert frame.loc[("age", "count", "30 to 50", "women"), "value"] == 50
    assert frame.loc[("age", "percent", "missing", "overall"), "value"] == pytest.approx(100 * 20 / 172)
    assert frame.loc[("sex", "count", "men or missing", "overall"), "value"] == 72
    assert frame.index.is_unique
    values = [record["value"] for record in found.records()]
    rows = csv.DictReader(io.StringIO(_csv(found)))
    assert [float(row["value"]) if row["value"] else None for row in rows] == values
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [each["value"] for each in document["figures"]] == [record["value"] for record in found.records()]
    assert document["columns"][1]["parts"][0] == {
        "part": "typical or missing", "members": ["typical"], "has_missing": True,
    }  # fmt: skip


def test_bars_stand_by_group_at_the_percent_of_its_records() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra notebook")
    from matplotlib.figure import Figure

    ax = results().plot("age", ax=Figure().subplots())
    heights = [[round(bar.get_height(), 1) for bar in bars] for bars in ax.containers]
    assert heights == [[50.0, 40.0, 10.0], [41.7, 44.4, 13.9]]
    (women, *_), (men, *_) = ax.containers
    assert women.get_x() + women.get_width() == pytest.approx(men.get_x()) == pytest.approx(0)
    assert [each.get_text() for each in ax.get_xticklabels()] == ["30 to 50", "50 to 70", "missing"]
    assert [each.get_text() for each in ax.get_legend().get_texts()] == ["women", "men or missing"]
    with pytest.raises(ConfigError, match="column sex: expected one of age, pain"):
        results().plot("sex")


def test_names_steer_no_terminal_no_spreadsheet_no_page_and_no_formula() -> None:
    found = hostile()
    for text in (found.to_text(), _csv(found)):
        assert all(each.isprintable() or each == "\n" for each in text)
    for row in csv.reader(io.StringIO(_csv(found))):
        assert not any(cell.startswith(("=", "@", "+", "-", "\t", "\r")) for cell in row)
    assert '"missing" or "a or b"' in found.to_text()


def test_names_are_no_formula_of_a_plot() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra notebook")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    canvas = FigureCanvasAgg(figure)
    hostile().plot("pain", ax=figure.subplots())
    canvas.draw()


Change = Callable[[State], object]
FINER = counted(2, [0, 1, 1, 0], [52, 120], [0, 1, 2, 0], [[32, 30, 38], [20, 26, 26]])
LIES: dict[str, tuple[Change, str]] = {
    "no counts": (lambda state: state.pop(ROWS), "there are no results"),
    "no cells": (lambda state: state.pop(f"{CELL_COUNTS}0"), "cell_counts/0: expected int64 .* got none"),
    "half a mean": (lambda state: state.pop(f"{MEANS}0"), "means/0: expected float64 .* got none"),
    "type": (
        lambda state: state.update({ROW_COUNTS: np.array([100.0, 72.0])}),
        "expected int64 of shape .2,., got float64 of shape .2,.",
    ),
    "shape": (lambda state: state.update({ROWS: whole([0, 1])}), "expected int64 of shape .3,."),
    "rank": (lambda state: state.update({ROWS: whole(0)}), "got int64 of shape ..$"),
    "few": (lambda state: state.update({ROW_COUNTS: whole([163, 9])}), "expected counts from 10 to"),
    "many": (
        lambda state: state.update({f"{PART_COUNTS}0": whole([1 << 62] * 4)}),
        "expected counts from 10 to 100000000000",
    ),
    "negative part": (
        lambda state: state.update({f"{PARTS}0": whole([0, 1, -1, 2])}),
        "numbered in their order",
    ),
    "far part": (
        lambda state: state.update({f"{PARTS}0": whole([0, 1, 2, 1 << 40])}),
        "numbered in their order",
    ),
    "order": (lambda state: state.update({f"{PARTS}2": whole([1, 0, 0, 1])}), "numbered in their order"),
    "apart": (
        lambda state: state.update({f"{PARTS}0": whole([0, 1, 0, 2])}),
        "method/parts/0: expected parts of neighbors",
    ),
    "finer table": (lambda state: state.update(FINER), "method/cell_counts/2: expected parts that are made"),
    "rows": (
        lambda state: state.update({f"{CELL_COUNTS}0": whole([[49, 40, 10], [31, 32, 10]])}),
        "method/cell_counts/0: expected cells that add up",
    ),
    "parts": (
        lambda state: state.update({f"{PART_COUNTS}0": whole([21, 60, 71, 20])}),
        "method/cell_counts/0: expected cells that add up",
    ),
    "flag": (lambda state: state[f"{SHOWN}0"].fill(2), "expected 0 and 1, got 2"),
    "no number": (lambda state: state[f"{MEANS}0"].fill(np.nan), "expected finite numbers"),
    "infinite": (lambda state: state[f"{DEVIATIONS}0"].fill(np.inf), "expected finite numbers"),
    "below": (lambda state: state[f"{DEVIATIONS}0"].fill(-1), "expected deviations from 0 to 40"),
    "outside": (lambda state: state[f"{MEANS}0"].fill(1e9), "expected means between"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_state_that_the_rules_cannot_give_is_refused(lie: str) -> None:
    change, message = LIES[lie]
    spec, state = by_sex()
    change(state)
    with pytest.raises(ConfigError, match=message):
        DescribedResults.of(spec, state)


@pytest.mark.parametrize("groups", [1, 3])
def test_every_state_that_the_phases_give_is_read(groups: int) -> None:
    """Uneven groups and tails, values that are missing, and in the end too few for any part."""
    draw, labels = np.random.default_rng(41), set()
    edges = (0.0, 10.0, 20.0, 40.0, 80.0)
    spec = analysis(
        {"name": "x", "edges": edges, "show": ["mean", "median", "counts"]},
        *([{"name": "g", "categories": ["a", "b", "c"]}] if groups > 1 else []),
        group="g" if groups > 1 else None,
    )
    for records in (10, 11, 15, 20, 30, 40, 60, 100, 300, 3_000) * 5:
        value_N = draw.gamma(2.0, 12.0, records)
        value_N[draw.random(records) < 0.1] = np.nan
        group_N = draw.choice(4, records, p=[0.6, 0.25, 0.1, 0.05]) if groups > 1 else None
        state = described(numbers(*edges), value_N, group_N, groups=groups)
        found = DescribedResults.of(spec, state)
        (x,) = found.columns
        assert sum(x.counts_Q) == found.heads[0].records == records
        assert sum(found.to_text().count(each) for each in ("nan", "inf")) == 0
        labels |= {record["part"] for record in found.records()}
        for place, spread in enumerate(x.means_H or ()):
            if spread is not None and place == 0:
                assert spread.mean.value == pytest.approx(
                    np.nanmean(np.where(value_N > 80, np.nan, value_N)), rel=0.3
                )
    assert {"any", "0 to 10", "40 to 80", "missing"} <= labels


ODD = {
    "i": [-1, 0, 1, 2, 10, 100, 1 << 40, -(1 << 62)],
    "u": [0, 1, 2, 255],
    "f": [-1.0, 0.0, 1e9, 1e-300, np.nan, np.inf, -np.inf],
}  # by kind of an array's type


def test_any_numbers_of_a_state_are_refused_or_shown() -> None:
    """Nothing but ConfigError leaves a state with a few numbers changed."""
    draw, shown = np.random.default_rng(7), 0
    for _ in range(400):
        spec, state = by_sex()
        for name in draw.choice([*state], draw.integers(1, 3)):
            array = state[name]
            array.flat[draw.integers(array.size)] = draw.choice(ODD[array.dtype.kind])
        try:
            found = DescribedResults.of(spec, state)
        except ConfigError:
            continue
        shown += 1
        assert not re.search(r"\b(nan|inf)\b", found.to_text() + _csv(found))
    assert 20 < shown < 380


def _csv(found: DescribedResults) -> str:
    return AnalysisResults(described=found, further=None).to_csv()
