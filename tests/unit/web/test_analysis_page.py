"""The page of an analysis's results: a table as journals print it, on a phone, and of hostile names."""

from __future__ import annotations

import re

from client.analysis.described import DescribedResults
from tests.support.described import AGE, PAIN, SEX, analysis, by_sex
from web.report.analysis import analysis_page
from web.shared.bars import BAR, MOST_BARS, RIGHT, WIDTH, bars
from web.shared.steps import MOST_LINES, step_chart

HOSTILE = '"><script>alert(1)</script>\u202e'


def test_page_has_every_line_note_and_chart_and_fetches_nothing() -> None:
    found = DescribedResults.of(*by_sex())
    text, table = analysis_page(found), found.table()
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text
    assert "<script" not in text
    assert text.count("<tr>") == len(table.lines) + 1
    # on a phone every cell is shown with the name of its column
    cells = re.findall(r'<td class="number" data-label="([^"]*)">', text)
    assert cells == [*table.heads] * len(table.lines)
    assert [re.sub("&#39;", "'", each) for each in re.findall("<li>(.*)</li>", text)] == [*table.notes]
    assert re.findall("<h2>(.*)</h2>", text) == ["age (years)", "pain", "What was shared"]
    assert 'level-1">mean (SD) <sup>1, 2</sup></th>' in text
    assert "no part or cell of fewer than 10 records" in text


def test_columns_without_counts_have_no_chart() -> None:
    spec = analysis({**AGE, "show": ["mean", "median"]}, SEX, PAIN, group="sex")
    text = analysis_page(DescribedResults.of(spec, by_sex()[1]))
    assert re.findall("<h2>(.*)</h2>", text) == ["pain", "What was shared"]


def test_names_of_a_job_are_escaped_wherever_they_stand() -> None:
    sex = {"name": HOSTILE, "categories": ['"><script>', "men"]}
    age = {**AGE, "name": f"age{HOSTILE}", "unit": '"><script>'}
    pain = {**PAIN, "categories": ['"><script>', "other", "none"]}
    spec = analysis(age, sex, pain, group=HOSTILE, purpose='"><script>')
    text = analysis_page(DescribedResults.of(spec, by_sex()[1]))
    assert "<script" not in text
    assert "\u202e" not in text
    assert text.count("&lt;script&gt;") > 10


def test_bars_are_as_long_as_their_percent() -> None:
    svg = str(bars(["a", "b"], ["x", "y"], [[10.0, 40.0], [0.0, 20.0]], label="l"))
    widths = [float(each) for each in re.findall(r'width="([0-9.]+)"', svg)]
    longest = WIDTH - RIGHT
    assert widths == [longest / 4, 0, longest, longest / 2]
    assert re.findall(r">([^<]+)</text>", svg) == ["a", "10.0 % x", "0.0 % y", "b", "40.0 % x", "20.0 % y"]
    heights = [int(each) for each in re.findall(r'<rect x="0" y="(\d+)"', svg)]
    assert heights[1] - heights[0] == BAR
    assert ">10.0 %<" in str(bars(["a"], ["all"], [[10.0]], label="l"))  # a group alone needs no name


def test_too_many_bars_are_no_chart() -> None:
    parts = [str(place) for place in range(MOST_BARS // 2 + 1)]
    assert bars(parts, ["x", "y"], [[1.0] * len(parts)] * 2, label="l") is None
    assert bars(parts, ["x"], [[0.0] * len(parts)], label="l") is not None


def test_names_of_steps_are_escaped_and_lines_differ_without_color() -> None:
    lines = [(HOSTILE, [(0.0, 1.0), (2.0, 0.5)]), ("b", [(0.0, 1.0), (2.0, 0.25)])]
    svg = str(step_chart(lines, axis=HOSTILE, label=HOSTILE))
    assert "<script" not in svg
    assert "\u202e" not in svg
    assert svg.count('stroke-dasharray="none" stroke-opacity="1.00"') == 2  # the line, and beside its name
    assert svg.count('stroke-dasharray="8 4" stroke-opacity="0.40"') == 2
    assert step_chart(lines * MOST_LINES, axis="", label="") is None
    assert step_chart([], axis="", label="") is None
