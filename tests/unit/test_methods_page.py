"""docs/methods.md against the code: every preset, part, option and rule, as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from chorale.spec.plug_in_specs import OWN_MODELS
from cli.demo.plan import RATE, RATES
from strategies.methods import strategy_for
from strategies.presets import PRESETS
from tests.support.method_tables import (
    Row,
    allowances,
    method_rows,
    option_rows,
    part_rows,
    published_rows,
    rules,
    task_rows,
)

DOCS = Path(__file__).parents[2] / "docs"
PAGE, CHOOSING = (DOCS / "methods.md").read_text(), (DOCS / "choosing-a-method.md").read_text()


def section(title: str) -> list[str]:
    """Its lines."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0].splitlines()


def table(title: str) -> list[Row]:
    """The cells of a section's only table, without its heading."""
    lines = [line for line in section(title) if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


def test_every_preset_has_its_row_and_names_its_paper() -> None:
    found = table("Presets")
    assert [row[:-1] for row in found] == list(method_rows())
    assert all(len(row[-1]) > 5 for row in found)


def test_choosing_a_method_says_of_every_preset_what_a_policy_has_to_allow() -> None:
    """The page left out newer methods, and who chose one learned it when the silos refused."""
    rows = [line.split("|") for line in CHOOSING.splitlines() if line.startswith("| `")]
    said_of = {preset: said for _, presets, said, *_ in rows for preset in re.findall("`([a-z_]+)`", presets)}
    fields = {"`class_statistics`", "`local_state`"}
    needed = {name: set(allowances(strategy_for(name, {}))) for name in PRESETS}
    assert {name: {each for each in fields if each in said_of.get(name, "")} for name in PRESETS} == needed


@pytest.mark.parametrize(("title", "rows"), [("Parts", part_rows()), ("Options", option_rows())])
def test_every_part_and_option_has_its_row(title: str, rows: Iterable[Row]) -> None:
    assert table(title) == list(rows)


def test_every_preset_that_its_authors_compute_otherwise_has_its_row() -> None:
    assert table("As published") == list(published_rows())


def test_every_network_has_its_row() -> None:
    assert [row[0].strip("`") for row in table("Networks")] == list(OWN_MODELS)


def test_every_task_has_its_row() -> None:
    assert table("Tasks") == list(task_rows())


def test_every_refused_combination_is_listed() -> None:
    assert [line[2:] for line in section("Parts") if line.startswith("- ")] == list(rules())


def test_the_demos_rates_are_those_that_were_measured() -> None:
    rates = {row[0].strip("`"): float(row[1]) for row in table("In the demo")}
    assert {preset: rate for preset, rate in rates.items() if rate != RATE} == RATES
