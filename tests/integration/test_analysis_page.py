"""docs/analysis.md from its policy to its figures, by silos of made-up tables that approve by hand."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support import readme
from tests.support.federation import LocalFederation, Settings
from tests.support.processes import REPOSITORY
from tests.support.readme import instead, run

pytestmark = pytest.mark.timeout(300)
PAGE = REPOSITORY / "docs" / "analysis.md"
CLINICS = ["clinic-a", "clinic-b", "clinic-c", "clinic-d"]
SIZES = (150, 300, 80, 45)
ANGINA = ["typical", "atypical", "none"]
SEXES = (("female", "male"), ("female",), ("male",))  # overall, and by group


class Clinics(LocalFederation):
    """The page's silos, its policy without a line that approves by itself, and a table each."""

    @property
    def names(self) -> list[str]:
        return CLINICS

    def _policy(self) -> Settings:
        return {
            "federation": self.ceremony.federation,
            **_shown("What the institutions allow"),
            **self.policy,
        }

    def _silo_settings(self, name: str, policy: Path, address: str) -> Settings:
        data = {"format": "csv", "path": str(self.folder / f"{name}.csv"), "name": "ward"}
        return {**super()._silo_settings(name, policy, address), "data": data, "objective": None}


def _shown(heading: str) -> dict[str, Any]:
    """The YAML block of a section."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", section, re.M | re.S)
    return dict(yaml.safe_load(block))


def _tables(folder: Path) -> list[dict[str, str]]:
    """Written for each clinic; all records."""
    rng, pooled = np.random.default_rng(7), []
    for name, size in zip(CLINICS, SIZES, strict=True):
        records = [
            {
                "sex": str(rng.choice(["female", "male"])),
                "age": "" if rng.random() < 0.1 else f"{rng.normal(58, 9):.1f}",
                "chol": "" if rng.random() < 0.15 else f"{rng.normal(225, 40):.0f}",
                "angina": str(rng.choice(ANGINA, p=[0.2, 0.3, 0.5])),
            }
            for _ in range(size)
        ]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(records[0]))
            writer.writeheader()
            writer.writerows(records)
        pooled += records
    return pooled


def _with_analysis(folder: Path) -> Clinics:
    """With the page's analysis beside the operator's file."""
    federation = Clinics(folder=folder, silos=len(CLINICS))
    fields = {**_shown("The file"), "federation": federation.ceremony.federation}
    (folder / "analysis.yaml").write_text(yaml.safe_dump(fields))
    return federation


def test_the_pages_policy_file_and_commands_give_table_one(tmp_path: Path) -> None:
    federation, pooled = _with_analysis(tmp_path), _tables(tmp_path)
    commands = readme.commands("analysis.md", "From file to figures")
    with federation:
        federation.start()
        federation.wait_connected()
        federation.operator_file()
        check = next(commands)
        for name in CLINICS:
            assert "ok       column: age: " in run(instead(check, "silo.yaml", f"{name}.yaml"), tmp_path)
        planned = run(next(commands), tmp_path)
        assert "counts 3 columns by sex; sums values of age, chol for means" in planned
        job_id = run(next(commands), tmp_path).split()[0]
        approve = instead(next(commands), "ID", job_id)
        for name in CLINICS:
            run([*instead(approve, "silo.yaml", f"{name}.yaml"), "--yes"], tmp_path)
        for command in commands:
            printed = run(instead(command, "ID", job_id), tmp_path)
            if command[1] == "results" and "--out" not in command:
                _check(printed, pooled)
    assert "<svg" in (tmp_path / "table-one.html").read_text()


def test_the_pages_notebook_gives_the_same_table(tmp_path: Path) -> None:
    for needed in ("pandas", "matplotlib"):
        pytest.importorskip(needed, reason="needs the extra notebook")
    federation, pooled = _with_analysis(tmp_path), _tables(tmp_path)
    federation.policy = {"approval": "automatic"}
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / "page.py").write_text(f"{code}print(results)\n")
    with federation:
        federation.start()
        federation.wait_connected()
        federation.operator_file()
        done = subprocess.run(
            [sys.executable, "-W", "error", "page.py"],
            cwd=tmp_path,
            env={**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert done.returncode == 0, done.stderr
    _check(done.stdout, pooled)


def _check(table: str, pooled: list[dict[str, str]]) -> None:
    assert table.startswith(f"table-one by sex: {len(pooled)} records of 4 silos")
    for kind in ANGINA[:2]:
        (line,) = re.findall(rf"^ +{kind} .*$", table, re.M)
        of = [sum(each["angina"] == kind for each in pooled if each["sex"] in sexes) for sexes in SEXES]
        assert [int(count) for count in re.findall(r"(\d+) \(", line)] == of
    shown = re.findall(r"^ +mean \(SD\).*?([\d.]+) \(([\d.]+)\)", table, re.M)
    for column, (mean, deviation) in zip(("age", "chol"), shown, strict=True):
        values = np.array([float(each[column]) for each in pooled if each[column]])
        error = values.std(ddof=1) / len(values) ** 0.5
        assert float(mean) == pytest.approx(values.mean(), abs=error / 4)
        assert float(deviation) == pytest.approx(values.std(ddof=1), abs=error / 4)
