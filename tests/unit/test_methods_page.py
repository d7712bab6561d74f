"""docs/methods.md against the code: presets, their papers and permissions, networks."""

from __future__ import annotations

import re
from pathlib import Path

from chorale.spec.plug_in_specs import OWN_MODELS
from strategies.methods import strategy_for
from strategies.presets import PRESETS
from tools.reference.methods import allowances

DOCS = Path(__file__).parents[2] / "docs"
PAGE, CHOOSING = (DOCS / "methods.md").read_text(), (DOCS / "choosing-a-method.md").read_text()


def section(title: str) -> list[str]:
    """Its lines."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0].splitlines()


def table(title: str) -> list[tuple[str, ...]]:
    """The cells of a section's only table, without its heading."""
    lines = [line for line in section(title) if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


def test_every_preset_names_its_paper() -> None:
    assert [row[0].strip("`") for row in table("Presets")] == list(PRESETS)
    assert all(len(row[1]) > 5 for row in table("Presets"))


def test_choosing_a_method_says_of_every_preset_what_a_policy_has_to_allow() -> None:
    """The page left out newer methods, and who chose one learned it when the silos refused."""
    rows = [line.split("|") for line in CHOOSING.splitlines() if line.startswith("| `")]
    said_of = {preset: said for _, said, presets, *_ in rows for preset in re.findall("`([a-z_]+)`", presets)}
    fields = {"`class_statistics`", "`local_state`"}
    needed = {name: set(allowances(strategy_for(name, {}))) for name in PRESETS}
    assert {name: {each for each in fields if each in said_of.get(name, "")} for name in PRESETS} == needed


def test_every_network_has_its_row() -> None:
    assert [row[0].strip("`") for row in table("Networks")] == list(OWN_MODELS)
