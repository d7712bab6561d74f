"""docs/architecture.md draws the way of FedDW's soft-label matrix: the drawing follows the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEADING = "## The way of the FedDW soft-label matrix"


def legs() -> list[list[tuple[str, str]]]:
    """Files and functions of each drawing, in order."""
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.split(HEADING)[1].split("\n## ")[0]
    drawings = re.findall(r"```\n(.*?)```", section, flags=re.DOTALL)
    return [[(line.split()[0], line.split()[1]) for line in drawing.splitlines()] for drawing in drawings]


def functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_way_has_three_legs_from_objective_to_loss() -> None:
    assert [(leg[0][0], leg[-1][0]) for leg in legs()] == [
        ("silo_agent/training/parts/statistics/soft_labels.py", "silo_agent/connection/transfer.py"),
        ("coordinator/service/federation_service.py", "coordinator/storage/checkpoints.py"),
        ("silo_agent/connection/transfer.py", "silo_agent/training/loop/local_training.py"),
    ]


@pytest.mark.parametrize("leg", range(3))
def test_no_leg_enters_a_file_twice(leg: int) -> None:
    files = [path for path, _ in legs()[leg]]
    assert len(files) == len(set(files))


@pytest.mark.parametrize("step", [step for leg in legs() for step in leg], ids=" ".join)
def test_every_step_is_a_function_of_its_file(step: tuple[str, str]) -> None:
    path, function = step
    assert function in functions_in(path)


def test_a_file_on_two_legs_has_a_function_for_each() -> None:
    steps = [step for leg in legs() for step in leg]
    assert len(steps) == len(set(steps))
