"""The pages that are written from the code are what the code says, and leave nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from chorale.spec.settings_file import load_mapping
from tools.reference import pages
from tools.reference.__main__ import main
from tools.reference.settings import FILES
from tools.reference.sources import CHARTS, ROOT, alerts, chart_file

TEXTS = {path: page() for path, page in pages.SITE.items()}
SETTINGS, VALUES = "reference/settings.md", "reference/values.md"
# examples that show what job.yaml has not, such as columns
EXAMPLES = {
    "Job": (
        "job.yaml",
        "job-csv.yaml",
        "job-private.yaml",
        "job-own.yaml",
        "job-search.yaml",
        "job-images.yaml",
        "job-scans.yaml",
        "job-text.yaml",
    ),
    "Silo": ("silo.yaml", "silo-data-sets.yaml"),
    "Analysis": (
        "analysis.yaml",
        "analysis-model.yaml",
        "analysis-noised.yaml",
        "analysis-cox.yaml",
        "analysis-survival.yaml",
        "analysis-correlations.yaml",
    ),
    **{file.title: (file.name,) for file in FILES if file.title not in ("Job", "Silo", "Analysis")},
}


def test_no_committed_page_is_stale() -> None:
    assert [*pages.stale()] == [], f"`{pages.COMMAND}` writes them"


def test_a_stale_page_is_named_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tools.reference.pages.COMMITTED", {"docs/a.md": lambda: "new\n", "docs/b.md": lambda: "same\n"}
    )
    monkeypatch.setattr("tools.reference.pages.ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("old\n")
    (tmp_path / "docs" / "b.md").write_text("same\n")

    checked = CliRunner().invoke(main, ["--check"])
    assert (checked.exit_code, checked.stderr) == (
        1,
        "docs/a.md: stale; `python -m tools.reference` writes it\n",
    )
    assert (tmp_path / "docs" / "a.md").read_text() == "old\n"
    assert CliRunner().invoke(main, []).stdout == "docs/a.md: written\n"
    assert CliRunner().invoke(main, ["--check"]).exit_code == 0


def tables(text: str) -> Iterator[list[dict[str, str]]]:
    """Every table as rows by title."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        titles, _, *rows = [re.split(r"(?<!\\)\|", line.strip("|\n")) for line in block.splitlines()]
        yield [{title.strip(): cell.strip() for title, cell in zip(titles, row, strict=True)} for row in rows]


def first_cells(text: str) -> set[str]:
    return {next(iter(row.values())) for table in tables(text) for row in table}


EXPLAINED_ELSEWHERE = {"reference/methods.md", "reference/papers.md"}  # docs/methods.md, docs/papers.md


@pytest.mark.parametrize("path", sorted(pages.SITE.keys() - EXPLAINED_ELSEWHERE))
def test_everything_is_explained(path: str) -> None:
    rows = [row for table in tables(TEXTS[path]) for row in table]
    assert len(rows) > 20
    assert [row for row in rows if row.get("Meaning", row.get("Says")) in ("-", None)] == []


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def keys_of(values: Any, above: str = "") -> Iterator[str]:
    """Dotted keys; those of entries in a list behind []."""
    for name, value in values.items():
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from keys_of(value, f"{above}{name}.")
        for entry in value if isinstance(value, list) else []:
            if isinstance(entry, dict):
                yield from keys_of(entry, f"{above}{name}[].")


@pytest.mark.parametrize("title", EXAMPLES)
def test_every_field_of_the_examples_has_its_row(title: str) -> None:
    files = [yaml.safe_load((ROOT / "docs" / "examples" / name).read_text()) for name in EXAMPLES[title]]
    named = re.compile(
        r"(\.(options|ratios|units|derive|rename)|^search\.values)\..*"
    )  # keys of these are names that somebody chose
    shown = {f"`{key}`" for values in files for key in keys_of(values) if not named.search(key)}
    rows = {re.sub(r"\[[a-z-]+\]", "[]", row) for row in first_cells(section(TEXTS[SETTINGS], title))}
    # one data set of several has the fields of a single one
    assert {row.replace("`data[].", "`data.") for row in rows} == {
        row.replace("`data[].", "`data.") for row in shown
    }


@pytest.mark.parametrize("file", [file for file in FILES if file.prefix], ids=lambda file: str(file.title))
def test_every_variable_sets_the_field_of_its_row(file: Any) -> None:
    (rows,) = tables(section(TEXTS[SETTINGS], file.title))
    for row in rows:
        found: Any = load_mapping(None, file.prefix, environment={row["Environment"].strip("`"): "x"})
        for name in row["Field"].strip("`").split("."):
            found = found[name]
        assert found == "x"


@pytest.mark.parametrize("chart", CHARTS.values())
def test_every_value_of_a_chart_has_its_row(chart: str) -> None:
    rows = first_cells(section(TEXTS[VALUES], chart))
    maps = {"`metrics.dashboard.labels`", "`networkPolicy.dns.podLabels`"}  # their keys are names
    keys = {
        f"`{key}`" for key in keys_of(yaml.safe_load(chart_file(chart, "values.yaml"))) if "[]" not in key
    }
    inside = {key for key in keys for each in maps if key.startswith(f"{each[:-1]}.")}
    assert rows == keys - inside


def test_every_command_that_a_guide_calls_has_its_section() -> None:
    headings = set(re.findall(r"^## (chorale .+)$", TEXTS["reference/cli.md"], re.MULTILINE))
    command = re.compile(r"^\$ (?:(?:kubectl|runuser) .* -- )?(chorale [a-z]\S*(?: [a-z]\S*)?)", re.MULTILINE)
    for guide in ("first-federation", "deploy-kubernetes", "deploy-one-machine", "operations"):
        called = command.findall((ROOT / "docs" / f"{guide}.md").read_text())
        assert called
        assert set(called) <= headings, guide
    assert "chorale demo" in headings


def test_every_alert_has_its_row_with_a_link_to_what_to_do() -> None:
    rows = first_cells(TEXTS["metrics.md"])
    for chart in CHARTS.values():
        for rule in alerts(chart):
            name = rule["alert"]
            assert f"[{name}](operations.md#{name.lower()})" in rows
