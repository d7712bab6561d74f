"""docs/notebook.md: each way in runs as it stands there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra silo")
pytest.importorskip("pandas", reason="needs the extra notebook")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "notebook.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
MOST_LINES = 30


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first block leaves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(BLOCKS[0], str(PAGE), "exec"), names)
    return names


def test_a_module_and_its_data(names: dict[str, Any]) -> None:
    assert len(names["table"]) == 3
    assert names["simulation"].final_accuracy.value > 0.8
    assert Path("accuracy.png").stat().st_size > 1000


@pytest.mark.parametrize(("place", "package"), [(1, "lightning"), (2, "transformers")])
def test_other_frameworks(names: dict[str, Any], place: int, package: str) -> None:
    assert len(BLOCKS[place].splitlines()) <= MOST_LINES
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed here")
    import silo_agent.training.machine.torchvision_compat  # noqa: F401  transformers imports torchvision its own way

    exec(compile(BLOCKS[place], str(PAGE), "exec"), names)
    assert names["simulation"].final_accuracy is not None
