"""`chorale package`: a folder of modules becomes the distribution that a job names, pinned by its content."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.processes import INSTALLED, REPOSITORY, environment
from tests.support.wheels import install
from tests.unit.cli.conftest import Calls

pytest.importorskip("torch", reason="needs the extra silo")

MODULE = """import torch
from chorale_models import Data, Loss, model


@model(head="1")
def ward_net(sizes, *, width=8):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, sizes.classes))


class Focal(Loss):
    def __init__(self, sizes, *, gamma=2.0):
        pass


def scans(sizes, *, folder) -> Data:
    return Data(train=[])


def helper(sizes):
    return sizes
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    made.mkdir()
    (made / "ward_models.py").write_text(MODULE)
    (made / "test_ward.py").write_text("raise SystemExit(9)")
    return made


@pytest.fixture(autouse=True)
def no_module_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ward_")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_packaged_model_trains_where_the_wheel_is_installed(
    folder: Path, tmp_path: Path, chorale: Calls
) -> None:
    made = chorale("package", folder, "--name", "ward-models", "--out", tmp_path / "dist")
    assert made.code == 0, made.err
    wheel, *offers = made.out.splitlines()
    version = re.search(r"from: ward-models==(0\+[0-9a-f]{12})}", made.out)
    assert version is not None
    assert [each.split("  #")[0] for each in offers] == [
        f"  {group}: {{name: {name}, from: ward-models=={version[1]}}}"
        for group, name in (("models", "ward-net"), ("parts", "focal"), ("data", "scans"))
    ]
    site = tmp_path / "site"
    install(wheel, site)
    job = {
        "name": "wards",
        "federation": "heart",
        "silos": ["a", "b", "c"],
        "rounds": 1,
        "classes": 10,
        "input_shape": [1, 8, 8],
        "model": {"name": "ward-net", "from": f"ward-models=={version[1]}", "options": {"width": 4}},
        "training": {"learning_rate": 0.1},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    ran = subprocess.run(
        [INSTALLED, "simulate", tmp_path / "job.yaml", "--data", "digits", "--device", "cpu"],
        env=environment({"PYTHONPATH": f"{REPOSITORY}:{site}"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[0])["round"] == 1


def test_the_version_is_that_of_the_content(folder: Path, tmp_path: Path, chorale: Calls) -> None:
    def name() -> str:
        made = chorale("package", folder, "--name", "ward-models", "--out", tmp_path / "dist")
        assert made.code == 0, made.err
        return made.out.splitlines()[0]

    first = name()
    assert name() == first
    (folder / "ward_models.py").write_text(MODULE + "# changed\n")
    assert name() != first


@pytest.mark.parametrize(
    "module, text, name, message",
    [
        ("ward_nothing", "x = 1", "ward", "its modules define nothing with chorale_models"),
        (
            "ward_wrong",
            "raise ValueError('no weights')",
            "ward",
            "imported: ValueError: no weights",
        ),
        ("ward-dash", "", "ward", "ward-dash.py is no name of a module"),
        ("ward_name", MODULE, 'ward"', "--name: expected letters, digits and inner hyphens"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    module: str, text: str, name: str, message: str, tmp_path: Path, chorale: Calls
) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    ended = chorale("package", tmp_path, "--name", name, "--out", tmp_path / "dist")
    assert ended.code == 2
    assert message in ended.err
    assert not (tmp_path / "dist").exists()
