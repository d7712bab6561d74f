"""docs/python.md and the notebook of docs/tutorials do what they say, against silos that train."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.federation import LocalFederation
from tests.support.processes import REPOSITORY, run_cli

for needed in ("torch", "sklearn", "pandas", "matplotlib"):
    pytest.importorskip(needed, reason="needs the extras silo and notebook")

pytestmark = [pytest.mark.gate, pytest.mark.timeout(300)]
DOCS = REPOSITORY / "docs"
SILOS = 3
QUIET = {"MPLBACKEND": "agg", "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With the files that a page's reader has, of a federation that runs."""
    folder = tmp_path_factory.mktemp("pages")
    cut = {"kind": "dirichlet", "alpha": 0.5, "silos": SILOS, "seed": 3}
    with LocalFederation(folder=folder, silos=SILOS, silo={"objective": None}) as federation:
        federation.start_coordinator()
        for index, name in enumerate(federation.names):
            data = {"format": "digits", "name": "digits", "partition": {**cut, "index": index}}
            federation.silo["data"] = data
            federation.start_silo(name)
        federation.wait_connected()
        federation.operator_file()
        fields = federation.job(
            name="digits",
            rounds=3,
            model={"name": "mlp", "hidden": [16]},
            classes=10,
            input_shape=[1, 8, 8],
            training={"learning_rate": 0.05, "local_epochs": 1},
        )
        (folder / "job.yaml").write_text(yaml.safe_dump(fields))
        yield folder


@pytest.mark.soak  # the notebook does most of it
def test_the_pages_code_runs_from_top_to_bottom(folder: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "python.md").read_text(), re.M | re.S)
    assert len(blocks) == 9
    (folder / "page.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"],
        cwd=folder,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    *_, same_results, error, _, _, _, same_columns, same_names = done.stdout.splitlines()
    assert (same_results, same_columns, same_names) == ("True", "True", "True")
    assert error == "job no such job: expected the id of one job, none begins with it"
    assert (folder / "accuracy.png").stat().st_size > 1000
    assert run_cli("evidence", "verify", folder / "evidence.zip").returncode == 0


def test_the_notebook_runs_and_trains(folder: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="runs notebooks: needs nbclient")
    nbclient = pytest.importorskip("nbclient", reason="runs notebooks")
    pytest.importorskip("ipykernel", reason="runs notebooks")
    notebook = nbformat.read(DOCS / "tutorials" / "first-federation.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    client = nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env={**os.environ, **QUIET, "MPLBACKEND": "module://matplotlib_inline.backend_inline"})
    kinds = {kind for cell in notebook.cells for kind in _kinds(cell)}
    assert {"text/html", "image/png"} <= kinds, "a table and a plot"
    rounds = [line for line in _printed(notebook) if line.endswith(" s") and ": applied, 3 silos, " in line]
    assert [line.split(":")[0] for line in rounds] == ["round 1", "round 2", "round 3"]


def _kinds(cell: Any) -> list[str]:
    return [kind for output in cell.get("outputs", ()) for kind in output.get("data", ())]


def _printed(notebook: Any) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") for output in outputs).splitlines()
